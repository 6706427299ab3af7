math.min(math.floor(waiter_lease / 3), @MAX_POLL_INTERVAL@)
