-- Publishes the grant to the session of the next holder. `listens`: whether anybody got it.
local key = KEYS[1]
local channel = @CHANNEL_START@ .. string.sub(redis.sha1hex(to), 1, 16)
local listeners = redis.pcall(@PUBLISH@, channel,
  struct.pack('<dc1c8dd', now, 'G', raw, token, offer_end - now))
-- After an error the number of listeners is unknown, which counts as listening.
local listens = type(listeners) == 'table' or listeners > 0
