-- Inspect: tells what stands, changing and settling nothing.

local LIST = 1000

return serve(function()
  local C = crowd()
  local holders, waiters, waiting = C.live_tenures(), {}, 0
  table.sort(holders, C.by_time_left)
  local listed = {}
  for i = 1, math.min(#holders, LIST) do
    local tenure = holders[i]
    listed[i] = pack('<Bc0c1I4I4ddB', #tenure.label, tenure.label, mode_of(tenure),
      tenure.permits or 0, #tenure.holds / 9, token_of(tenure), tenure.ends - now,
      tenure.flags % 2)
  end
  C.each_place(function(place)
    waiting = waiting + 1
    if waiting <= LIST then
      waiters[waiting] = pack('<Bc0c1I4dB', #place.label, place.label, place.mode,
        place.permits, place.ends - now, place.away and 1 or 0)
    end
  end)
  local used_as = #holders + waiting > 0 and '\1' .. spec or '\0'
  local last = token > 0 and '\1' .. pack('<d', token) or '\0'
  return used_as .. last
    .. pack('<I4I4', #holders, #listed) .. table.concat(listed)
    .. pack('<I4I4', waiting, #waiters) .. table.concat(waiters)
end)
