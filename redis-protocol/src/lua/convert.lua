-- Convert: turns one hold of a reader/writer lock into the other kind.

-- Only the sole holder may; while others wait, once in a tenure.
local function may_upgrade(tenure)
  return tenure_count == 1 and (place_count == 0 or tenure.flags % 4 < UPGRADED)
end

return serve(function()
  set_operation()
  local expected, to = parse('<dc1', argument, 33)
  local freed, expired = drop_if_expired()
  settle(true, freed)
  local tenure = live()
  if not tenure then
    return 'L' .. why_not(expired)
  end
  if kind ~= RW_LOCK then
    return 'S'
  end
  if expected ~= token then
    return 'W' .. view(tenure)
  end
  local holds, at = tenure.holds, hold_at(tenure, raw_sequence)
  if sub(holds, at, at) == to then
    return 'C' .. pack('<dd', token, left(tenure.ends))
  end
  if to == 'X' and not may_upgrade(tenure) then
    return 'S'
  end
  local before = mode_of(tenure)
  tenure.holds = sub(holds, 1, at - 1) .. to .. sub(holds, at + 1)
  local after = mode_of(tenure)
  if to == 'X' and place_count > 0 and tenure.flags % 4 < UPGRADED then
    tenure.flags = tenure.flags + UPGRADED
  end
  tenure.fresh, dirty = true, true
  used = used - weight(before) + weight(after)
  token = token_after(0)
  local reply = 'C' .. pack('<dd', token, left(tenure.ends))
  if weight(after) < weight(before) then
    settle(true, true)
  end
  return reply
end)
