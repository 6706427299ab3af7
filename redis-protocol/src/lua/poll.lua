-- Poll: refreshes a place in the queue and tells how it stands.

return serve(function()
  set_operation()
  local listening = string.byte(S.argument, 33) == 1
  local freed, expired = drop_if_expired()
  if S.place_count > 0 then
    crowd().refresh_place(listening)
  end
  settle(S.place_count > 0, freed, true)
  if S.policy == @BARGING@ and S.place_count > 0 then
    -- Under barging a waiter gets a free key by its own poll.
    local ticket, place = crowd().own_place()
    if ticket and fits(place.mode, place.permits) then
      crowd().grant_place(ticket, place)
    end
  end
  local tenure = live()
  if tenure then
    return acquired(tenure)
  end
  if S.place_count > 0 then
    local ticket, place = crowd().own_place()
    if ticket and place.ends > S.now then
      return crowd().queued(ticket, place)
    end
  end
  return 'G' .. crowd().why_not(expired)
end)
