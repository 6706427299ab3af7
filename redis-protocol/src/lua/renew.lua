-- Renew: extends a tenure, or confirms a claim.

return serve(function()
  set_operation()
  local lease = parse('<d', argument, 33)
  local freed, expired = drop_if_expired()
  settle(place_count > 0, freed)
  local tenure = live()
  if not tenure then
    return 'L' .. why_not(expired)
  end
  if tenure.flags % 2 == REVOKED then
    return 'LF'
  end
  -- Never shortens; the bound of the earliest end stays a lower bound.
  tenure.ends, tenure.fresh, dirty = math.max(tenure.ends, now + lease), true, true
  cover_tenure(tenure.ends)
  return 'N' .. pack('<dd', token_of(tenure), tenure.ends - now)
end)
