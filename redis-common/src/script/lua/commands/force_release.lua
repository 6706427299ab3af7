-- Force release: takes a key from holders that were seen before, by their tokens.

-- Revokes a tenure or ends it.
local function force(S, tenure, how)
  local to = string.sub(tenure.holder, 1, 16)
  if tenure.flags % 2 ~= @REVOKED@ then
    tenure.flags = tenure.flags + @REVOKED@
  end
  tenure.fresh, S.dirty = true, true
  for at = 1, #tenure.holds, 9 do
    S:tell(to, 'R' .. string.sub(tenure.holds, at + 1, at + 8))
  end
  if how ~= @FORCE_NOW@ then
    return
  end
  S:remove_tenure(tenure.holder, tenure)
  -- So that a late holder still learns what happened.
  local mark = S:mark_of(to)
  if mark and S:hold_at(tenure, struct.pack('<d', mark.sequence)) then
    mark.why, mark.fresh = 'F', true
  end
end

return S:serve(function(S)
  local how, tokens = string.byte(S.argument), {}
  for at = 2, #S.argument, 8 do
    tokens[struct.unpack('<d', S.argument, at)] = true
  end
  S:settle(true, false)
  local seen = {}
  for _, tenure in ipairs(S:live_tenures()) do
    if tokens[S:token_of(tenure)] then
      seen[#seen + 1] = tenure
    end
  end
  if #seen == 0 then
    return 'W'
  end
  table.sort(seen, function(a, b)
    return S:holder_before(a.holder, b.holder)
  end)
  for _, tenure in ipairs(seen) do
    force(S, tenure, how)
  end
  if how == @FORCE_NOW@ then
    S:settle(true, true)
  end
  return 'F' .. struct.pack('<I4', #seen)
end)
