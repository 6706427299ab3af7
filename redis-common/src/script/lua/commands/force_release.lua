-- Force release: revokes or removes the holders with the given tokens.

-- Revokes a holder, or removes it.
local function force(S, holder, force_mode)
  local to = string.sub(holder.id, 1, 16)
  for at = 1, #holder.holds, 9 do
    S:notify(to, 'R' .. string.sub(holder.holds, at + 1, at + 8))
  end
  if force_mode ~= @FORCE_NOW@ then
    if holder.flags % 2 ~= @REVOKED@ then
      holder.flags = holder.flags + @REVOKED@
    end
    return S:put_holder(holder)
  end
  S:remove_holder(holder)
  -- The holder learns the reason from its next command.
  local sequence, watermark_end = S:watermark_of(to)
  if sequence and S:hold_at(holder, struct.pack('<d', sequence)) then
    S:put('m' .. to, struct.pack('<ddc1', sequence, watermark_end, @REASON_FORCED@))
  end
end

S.names_operation = false

return S:serve(function(S)
  local force_mode, tokens = string.byte(S.argument), {}
  for at = 2, #S.argument, 8 do
    tokens[struct.unpack('<d', S.argument, at)] = true
  end
  S:settle(true)
  local named = {}
  for _, holder in ipairs(S:live_holders()) do
    if tokens[S:token_of(holder)] then
      named[#named + 1] = holder.id
    end
  end
  if #named == 0 then
    return 'W'
  end
  table.sort(named, function(a, b)
    return S:holder_before(a, b)
  end)
  for _, holder_id in ipairs(named) do
    -- A removed holder changes the slot of another.
    force(S, S:holder_of(holder_id), force_mode)
  end
  if force_mode == @FORCE_NOW@ then
    S:settle(true)
  end
  return 'F' .. struct.pack('<I4', #named)
end)
