-- Poll: refreshes a place in the queue and reports on it.

return S:serve(function(S)
  S:set_operation()
  local listening = string.byte(S.argument, 33) == 1
  local freed, expired = S:drop_if_expired()
  if S.waiter_count > 0 then
    S:refresh_waiter(listening)
  end
  S:settle(S.waiter_count > 0, freed, true)
  if S.policy == @BARGING@ and S.waiter_count > 0 then
    -- Under barging a waiter gets a free key by its own poll.
    local ticket, waiter = S:own_waiter()
    if ticket and S:fits(waiter.mode, waiter.permits) then
      S:grant_waiter(ticket, waiter)
    end
  end
  return S:report() or 'G' .. S:why_not(expired)
end)
