-- Force release: takes a key away from those who were seen to hold it.

local NOW = 78 -- 'N'

-- Revokes a tenure or ends it.
local function force(tenure, how)
  local C, to = crowd(), string.sub(tenure.holder, 1, 16)
  if tenure.flags % 2 ~= @REVOKED@ then
    tenure.flags = tenure.flags + @REVOKED@
  end
  tenure.fresh, S.dirty = true, true
  for at = 1, #tenure.holds, 9 do
    C.tell(to, 'R' .. string.sub(tenure.holds, at + 1, at + 8))
  end
  if how ~= NOW then
    return
  end
  remove_tenure(tenure.holder, tenure)
  -- So that a holder that comes late can still be told what happened to it.
  local mark = mark_of(to)
  if mark and hold_at(tenure, struct.pack('<d', mark.sequence)) then
    mark.why, mark.fresh = 'F', true
  end
end

return serve(function()
  local how, tokens = string.byte(S.argument), {}
  for at = 2, #S.argument, 8 do
    tokens[struct.unpack('<d', S.argument, at)] = true
  end
  settle(true, false)
  local C, seen = crowd(), {}
  for _, tenure in ipairs(C.live_tenures()) do
    if tokens[token_of(tenure)] then
      seen[#seen + 1] = tenure
    end
  end
  if #seen == 0 then
    return 'W'
  end
  table.sort(seen, C.by_holder)
  for _, tenure in ipairs(seen) do
    force(tenure, how)
  end
  if how == NOW then
    settle(true, true)
  end
  return 'F' .. struct.pack('<I4', #seen)
end)
