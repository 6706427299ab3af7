-- Poll: refreshes a waiter and reports its state.

return S:serve(function(S)
  local listening = string.byte(S.argument, 33) == 1
  local expired = S:drop_if_expired()
  if S.waiter_count > 0 then
    S:refresh_waiter(listening)
  end
  S:settle(S.waiter_count > 0, true)
  return S:report() or 'G' .. S:reason(expired)
end)
