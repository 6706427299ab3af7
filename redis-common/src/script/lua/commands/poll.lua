-- Poll: refreshes a waiter and reports its state.

return S:serve(function(S)
  S:set_operation()
  local listening = string.byte(S.argument, 33) == 1
  local freed, expired = S:drop_if_expired()
  if S.waiter_count > 0 then
    S:refresh_waiter(listening)
  end
  S:settle(S.waiter_count > 0, freed, true)
  if S.policy == @BARGING@ and S.waiter_count > 0 then
    -- Under the barging policy, a waiter takes a free key with its own poll.
    local ticket, waiter = S:own_waiter()
    if ticket and S:fits(waiter.mode, waiter.permits) then
      S:grant_waiter(ticket, waiter)
    end
  end
  return S:report() or 'G' .. S:reason(expired)
end)
