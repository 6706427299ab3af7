-- Inspect: describes the state, and changes nothing.

S.names_operation = false

return S:serve(function(S)
  local holders, waiters, waiting, weight = S:live_holders(), {}, 0, 0
  for _, holder in ipairs(holders) do
    weight = weight + S:weight(S:mode_of(holder.holds), holder.permits)
  end
  table.sort(holders, function(a, b)
    return S:earlier(a, b)
  end)
  local listed = {}
  for i = 1, math.min(#holders, @INSPECT_LIST@) do
    local holder = holders[i]
    listed[i] = struct.pack('<Bc0c1I4I4ddB', #holder.label, holder.label, S:mode_of(holder.holds),
      holder.permits or 0, #holder.holds / 9, S:token_of(holder), holder.ends - S.now,
      holder.flags % 2)
  end
  for waiter in S:each_waiter() do
    if waiter.ends > S.now then
      waiting = waiting + 1
      if waiting <= @INSPECT_LIST@ then
        waiters[waiting] = struct.pack('<Bc0c1I4dB', #waiter.label, waiter.label, waiter.mode,
          waiter.permits, waiter.ends - S.now, waiter.flags >= @UNREACHABLE@ and 1 or 0)
      end
    end
  end
  local spec = #holders + waiting > 0 and '\1' .. S.spec or '\0'
  local last = S.token > 0 and '\1' .. struct.pack('<d', S.token) or '\0'
  return spec .. last
    .. struct.pack('<I4I4I4', #holders, weight, #listed) .. table.concat(listed)
    .. struct.pack('<I4I4', waiting, #waiters) .. table.concat(waiters)
    .. S:view_note(S:standing_note())
end)
