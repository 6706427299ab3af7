-- Force release: revokes or removes the holders with the given tokens.

-- Revokes a holder, or removes it.
local function force(S, holder, force_mode)
  local to = string.sub(holder.holder_id, 1, 16)
  if holder.flags % 2 ~= @REVOKED@ then
    holder.flags = holder.flags + @REVOKED@
  end
  holder.fresh, S.dirty = true, true
  for at = 1, #holder.holds, 9 do
    S:notify(to, 'R' .. string.sub(holder.holds, at + 1, at + 8))
  end
  if force_mode ~= @FORCE_NOW@ then
    return
  end
  S:remove_holder(holder.holder_id, holder)
  -- The holder learns the reason from its next command.
  local watermark = S:watermark_of(to)
  if watermark and S:hold_at(holder, struct.pack('<d', watermark.sequence)) then
    watermark.reason, watermark.fresh = @REASON_FORCED@, true
  end
end

return S:serve(function(S)
  local force_mode, tokens = string.byte(S.argument), {}
  for at = 2, #S.argument, 8 do
    tokens[struct.unpack('<d', S.argument, at)] = true
  end
  S:settle(true)
  local seen = {}
  for _, holder in ipairs(S:live_holders()) do
    if tokens[S:token_of(holder)] then
      seen[#seen + 1] = holder
    end
  end
  if #seen == 0 then
    return 'W'
  end
  table.sort(seen, function(a, b)
    return S:holder_before(a.holder_id, b.holder_id)
  end)
  for _, holder in ipairs(seen) do
    force(S, holder, force_mode)
  end
  if force_mode == @FORCE_NOW@ then
    S:settle(true)
  end
  return 'F' .. struct.pack('<I4', #seen)
end)
