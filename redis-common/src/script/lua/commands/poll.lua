-- Poll: refreshes a place in the queue and reports on it.

return S:serve(function(S)
  S:set_operation()
  local listening = string.byte(S.argument, 33) == 1
  local freed, expired = S:drop_if_expired()
  if S.place_count > 0 then
    S:refresh_place(listening)
  end
  S:settle(S.place_count > 0, freed, true)
  if S.policy == @BARGING@ and S.place_count > 0 then
    -- Under barging a waiter gets a free key by its own poll.
    local ticket, place = S:own_place()
    if ticket and S:fits(place.mode, place.permits) then
      S:grant_place(ticket, place)
    end
  end
  return S:report() or 'G' .. S:why_not(expired)
end)
