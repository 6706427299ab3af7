math.min(math.floor(waiter_lease / @POLLS_PER_WAITER_LEASE@), @MAX_POLL_INTERVAL@)
