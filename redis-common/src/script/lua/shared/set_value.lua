-- Writes `value` and sets `written`. `moved` says whether `stored_end` has changed.
local answer
if moved then
  answer = redis.pcall('SET', KEYS[1], value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
else
  answer = redis.pcall('SET', KEYS[1], value, 'KEEPTTL')
end
written = answer.ok
