-- Sets `poll_after` from `waiter_lease`, `ahead`, `retry_after`, and a string that begins with the
-- session. The first few waiters poll when the state may change next. The others of a session poll
-- together.
local poll = @POLL_INTERVAL@
local poll_after = math.min(poll, retry_after)
if ahead >= @FIRST_WAITERS@ then
  local quarter, step = math.floor(poll / 4), string.byte(session) % @STAGGER_STEPS@
  poll_after = poll - quarter + math.floor(step * quarter / @STAGGER_STEPS@)
end
