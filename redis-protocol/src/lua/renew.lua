-- Renew: extends a tenure, or confirms a claim.

return serve(function()
  set_operation()
  local lease = struct.unpack('<d', S.argument, 33)
  local freed, expired = drop_if_expired()
  settle(S.place_count > 0, freed)
  local tenure = live()
  if not tenure then
    return 'L' .. crowd().why_not(expired)
  end
  if tenure.flags % 2 == @REVOKED@ then
    return 'LF'
  end
  -- Never shortens; the bound of the earliest end stays a lower bound.
  tenure.ends, tenure.fresh, S.dirty = math.max(tenure.ends, S.now + lease), true, true
  cover(tenure.ends + @RETENTION@)
  return 'N' .. struct.pack('<dd', token_of(tenure), tenure.ends - S.now)
end)
