-- Sets `poll_after`: when a waiter polls next. The first few ask when something may change; the
-- others, `ahead` of whom many stand, spread their polls.
local poll = math.min(math.floor(waiter_lease / 3), @MAX_POLL_INTERVAL@)
local poll_after = math.min(poll, change_in)
if ahead >= @CHECK_EARLY@ then
  local half = math.floor(poll / 2)
  poll_after = half + math.floor(ahead % @STAGGER_STEPS@ * half / @STAGGER_STEPS@)
end
