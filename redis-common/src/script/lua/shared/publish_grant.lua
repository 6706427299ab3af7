-- Publishes the grant, after all writes: a message that has left can't be taken back.
redis.pcall(@PUBLISH@, channel,
  struct.pack('<dc8c1c8dd', now, clock_id, 'G', raw, token, offer_end - now))
