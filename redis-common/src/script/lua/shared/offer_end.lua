-- The end of an offer to a waiter (rule 10).
function(now, lease, waiter_end, waiter_lease)
  local poll = math.min(math.floor(waiter_lease / @POLLS_PER_WAITER_LEASE@), @MAX_POLL_INTERVAL@)
  return math.min(waiter_end, now + math.max(lease, @OFFER_POLLS@ * poll))
end
