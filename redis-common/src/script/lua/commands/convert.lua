-- Convert: changes the mode of one hold of a reader/writer lock.

-- Only the sole holder may upgrade, and only once while others wait (rule 6).
local function may_upgrade(S, holder)
  return S.holder_count == 1 and (S.waiter_count == 0 or holder.flags % 4 < @UPGRADED@)
end

return S:serve(function(S)
  local expected, to = struct.unpack('<dc1', S.argument, 33)
  local expired = S:drop_if_expired()
  S:settle(true)
  local holder = S:live()
  if not holder then
    return 'L' .. S:reason(expired)
  end
  if S.kind ~= @RW_LOCK@ then
    return 'S'
  end
  if expected ~= S.token then
    return 'W' .. S:status(holder)
  end
  local holds, at = holder.holds, S:hold_at(holder, S.raw_sequence)
  if string.sub(holds, at, at) == to then
    return 'C' .. struct.pack('<dd', S.token, holder.ends - S.now)
  end
  if to == 'X' and not may_upgrade(S, holder) then
    return 'S'
  end
  local before = S:mode_of(holds)
  holder.holds = string.sub(holds, 1, at - 1) .. to .. string.sub(holds, at + 1)
  local after = S:mode_of(holder.holds)
  if to == 'X' and S.waiter_count > 0 and holder.flags % 4 < @UPGRADED@ then
    holder.flags = holder.flags + @UPGRADED@
  end
  S:put_holder(holder)
  S.used = S.used - S:weight(before) + S:weight(after)
  S.token = math.max(S.token + 1, S.now)
  local reply = 'C' .. struct.pack('<dd', S.token, holder.ends - S.now)
  if S:weight(after) < S:weight(before) then
    S:settle(true)
  end
  return reply
end)
