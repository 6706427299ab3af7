-- A waiter leaves the queue of a hash. Others are left.
local ticket = struct.unpack('<d', own)
local field, before, after = 'w' .. own, struct.pack('<c1d', 'w', ticket - 1),
  struct.pack('<c1d', 'w', ticket + 1)
local near = redis.call('HMGET', KEYS[1], field, before, after)
-- The tickets of the hole that it leaves.
local from, to, is_first = own, own, ticket == first_ticket
if near[2] and #near[2] == 8 then
  from = near[2]
else
  before = field
end
if near[3] and #near[3] == 8 then
  to = near[3]
else
  after = field
end
-- Whether this part serves the step: the next first waiter is alive, and no readers may enter.
local serves_here = true -- another waiter stays the first
if is_first and not full then
  serves_here = false -- the writer leaves, so readers may enter
elseif is_first then
  before, first_ticket = 'w' .. to, struct.unpack('<d', to) + 1
  first_end = struct.unpack('<d',
    redis.call('HGET', KEYS[1], struct.pack('<c1d', 'w', first_ticket)), 54)
  serves_here = first_end > now
end
local needed_end = watermark_end
@MOVE_STORED_END@
if struct.unpack('<d', near[1], 54) > now and serves_here
  and type(redis.pcall('HDEL', KEYS[1], 'q' .. name, field, before, after)) == 'number'
then
  local left = struct.pack('<c45I4ddddddd', kept, waiting - 1, token, stored_end, earliest,
    next_ticket, first_ticket, first_end, waiters_end) .. string.sub(stored, 106)
  if is_first then
    redis.call('HSET', KEYS[1], 'head', left, 'm' .. session, watermark)
  else
    redis.call('HSET', KEYS[1], 'head', left, 'm' .. session, watermark,
      'w' .. from, to, 'w' .. to, from)
  end
  if moved then
    @SET_EXPIRY@
  end
  return struct.pack('<c1dc1', @DONE@, now, 'L')
end
