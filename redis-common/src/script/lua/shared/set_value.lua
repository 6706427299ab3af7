-- Writes `value` and sets `written`. `moved` says whether `stored_end` has changed.
local answer
if moved then
  answer = redis.pcall('SET', KEYS[1], value, 'PXAT', math.ceil(stored_end / 1000) + 1000)
else
  answer = redis.pcall('SET', KEYS[1], value, 'KEEPTTL')
end
written = answer.ok
