math.min(waiter_end, now + math.max(lease, @OFFER_POLLS@ * @POLL_INTERVAL@))
