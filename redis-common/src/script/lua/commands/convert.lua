-- Convert: turns one hold of a reader/writer lock into the other kind.

-- Only the sole holder may; while others wait, once in a tenure.
local function may_upgrade(S, tenure)
  return S.tenure_count == 1 and (S.place_count == 0 or tenure.flags % 4 < @UPGRADED@)
end

return S:serve(function(S)
  S:set_operation()
  local expected, to = struct.unpack('<dc1', S.argument, 33)
  local freed, expired = S:drop_if_expired()
  S:settle(true, freed)
  local tenure = S:live()
  if not tenure then
    return 'L' .. S:why_not(expired)
  end
  if S.kind ~= @RW_LOCK@ then
    return 'S'
  end
  if expected ~= S.token then
    return 'W' .. S:view(tenure)
  end
  local holds, at = tenure.holds, S:hold_at(tenure, S.raw_sequence)
  if string.sub(holds, at, at) == to then
    return 'C' .. struct.pack('<dd', S.token, tenure.ends - S.now)
  end
  if to == 'X' and not may_upgrade(S, tenure) then
    return 'S'
  end
  local before = S:mode_of(tenure)
  tenure.holds = string.sub(holds, 1, at - 1) .. to .. string.sub(holds, at + 1)
  local after = S:mode_of(tenure)
  if to == 'X' and S.place_count > 0 and tenure.flags % 4 < @UPGRADED@ then
    tenure.flags = tenure.flags + @UPGRADED@
  end
  tenure.fresh, S.dirty = true, true
  S.used = S.used - S:weight(before) + S:weight(after)
  S.token = math.max(S.token + 1, S.now)
  local reply = 'C' .. struct.pack('<dd', S.token, tenure.ends - S.now)
  if S:weight(after) < S:weight(before) then
    S:settle(true, true)
  end
  return reply
end)
