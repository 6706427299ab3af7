-- End: releases a hold, gives up a claim, or leaves the queue.

-- Takes one hold out of its tenure; the reply, and whether that freed something.
local function end_hold(tenure)
  local holds = tenure.holds
  if #holds == 9 then
    remove_tenure(holder_of(), tenure)
    return 'R' .. struct.pack('<I4', 0), true
  end
  local before = mode_of(tenure)
  local at = hold_at(tenure, S.raw_sequence)
  tenure.holds = string.sub(holds, 1, at - 1) .. string.sub(holds, at + 9)
  tenure.fresh = true
  local after = mode_of(tenure)
  if before ~= after then
    -- The last write hold went: what is left is a downgrade.
    S.used = S.used - weight(before) + weight(after)
    S.token = math.max(S.token + 1, S.now)
  end
  return 'R' .. struct.pack('<I4', #tenure.holds / 9) .. crowd().view(tenure), before ~= after
end

return serve(function()
  set_operation()
  local freed, expired = drop_if_expired()
  settle(S.place_count > 0, freed)
  local reply
  local tenure = live()
  if tenure then
    reply, freed = end_hold(tenure)
  else
    local ticket, place
    if S.place_count > 0 then
      ticket, place = crowd().own_place()
    end
    if ticket then
      crowd().remove_place(ticket, place)
      reply, freed = 'L', true
    else
      reply, freed = 'N' .. crowd().why_not(expired), false
    end
  end
  note('E')
  if freed then
    settle(S.place_count > 0, true)
  end
  return reply
end)
