-- When a waiter polls next. The first few poll when the state may change next. The others of a session
-- poll together.
function(waiter_lease, ahead, retry_after, session)
  local poll = math.min(math.floor(waiter_lease / @POLLS_PER_WAITER_LEASE@), @MAX_POLL_INTERVAL@)
  if ahead < @FIRST_WAITERS@ then
    return math.min(poll, retry_after)
  end
  local quarter, step = math.floor(poll / 4), string.byte(session) % @STAGGER_STEPS@
  return poll - quarter + math.floor(step * quarter / @STAGGER_STEPS@)
end
