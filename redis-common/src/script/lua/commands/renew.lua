-- Renew: extends a tenure, or confirms a claim.

return S:serve(function(S)
  S:set_operation()
  local lease = struct.unpack('<d', S.argument, 33)
  local freed, expired = S:drop_if_expired()
  S:settle(S.place_count > 0, freed)
  local tenure = S:live()
  if not tenure then
    return 'L' .. S:why_not(expired)
  end
  if tenure.flags % 2 == @REVOKED@ then
    return 'LF'
  end
  -- Never shortens a lease. S.earliest stays a lower bound.
  tenure.ends, tenure.fresh, S.dirty = math.max(tenure.ends, S.now + lease), true, true
  S:cover(tenure.ends + @RETENTION@)
  return 'N' .. struct.pack('<dd', S:token_of(tenure), tenure.ends - S.now)
end)
