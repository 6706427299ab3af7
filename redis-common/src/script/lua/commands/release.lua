-- Release: ends a hold, gives up a claim, or leaves the queue.

-- Removes one hold from its tenure. Returns the reply, and whether that freed something.
local function end_hold(S, tenure)
  local holds = tenure.holds
  if #holds == 9 then
    S:remove_tenure(S:holder_of(), tenure)
    return 'R' .. struct.pack('<I4', 0), true
  end
  local before = S:mode_of(tenure)
  local at = S:hold_at(tenure, S.raw_sequence)
  tenure.holds = string.sub(holds, 1, at - 1) .. string.sub(holds, at + 9)
  tenure.fresh = true
  local after = S:mode_of(tenure)
  if before ~= after then
    -- The last write hold ended: this is a downgrade.
    S.used = S.used - S:weight(before) + S:weight(after)
    S.token = math.max(S.token + 1, S.now)
  end
  return 'R' .. struct.pack('<I4', #tenure.holds / 9) .. S:view(tenure), before ~= after
end

return S:serve(function(S)
  S:set_operation()
  local freed, expired = S:drop_if_expired()
  S:settle(S.place_count > 0, freed)
  local reply
  local tenure = S:live()
  if tenure then
    reply, freed = end_hold(S, tenure)
  else
    local ticket, place
    if S.place_count > 0 then
      ticket, place = S:own_place()
    end
    if ticket then
      S:remove_place(ticket, place)
      reply, freed = 'L', true
    else
      reply, freed = 'N' .. S:why_not(expired), false
    end
  end
  S:note('E')
  if freed then
    S:settle(S.place_count > 0, true)
  end
  return reply
end)
