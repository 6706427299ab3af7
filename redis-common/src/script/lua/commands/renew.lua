-- Renew: extends a holder, or confirms an offer (a grant to a waiter).

return S:serve(function(S)
  local lease = struct.unpack('<d', S.argument, 33)
  local expired = S:drop_if_expired()
  S:settle(S.waiter_count > 0)
  local holder = S:live()
  if not holder then
    return 'L' .. S:reason(expired)
  end
  if holder.flags % 2 == @REVOKED@ then
    return 'L' .. @REASON_FORCED@
  end
  -- A renewal never shortens the lease, so S.earliest remains a lower bound.
  holder.ends = math.max(holder.ends, S.now + lease)
  S:put_holder(holder)
  S:cover(holder.ends + @RETENTION@)
  return 'N' .. struct.pack('<dd', S:token_of(holder), holder.ends - S.now)
end)
