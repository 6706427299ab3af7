-- Sets `poll_after` from `waiter_lease`, `ahead` and `retry_after`. The first few waiters poll when
-- the state may change next. The polls of the others are spread out.
local poll = @POLL_INTERVAL@
local poll_after = math.min(poll, retry_after)
if ahead >= @CHECK_EARLY@ then
  local half = math.floor(poll / 2)
  poll_after = half + math.floor(ahead % @STAGGER_STEPS@ * half / @STAGGER_STEPS@)
end
