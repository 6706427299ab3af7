-- A waiter leaves the queue of a hash. Returns the answer, or nothing if an expired waiter would be the next
-- one, or readers may enter. `own` is its ticket, `name` its operation.
function(key, stored, full, own, name, watermark, now)
  local kept, waiting, token, stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end =
    struct.unpack('<c45I4ddddddd', stored)
  local ticket = struct.unpack('<d', own)
  local field, before, after = 'w' .. own, struct.pack('<c1d', 'w', ticket - 1),
    struct.pack('<c1d', 'w', ticket + 1)
  local near = redis.call('HMGET', key, field, before, after)
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
  if is_first and not full then
    return nil -- the writer leaves, so readers may enter
  elseif is_first and waiting == 1 then
    before, first_ticket, first_end, waiters_end = 'w' .. to, 0, 0, now
  elseif is_first then
    before, first_ticket = 'w' .. to, struct.unpack('<d', to) + 1
    first_end = struct.unpack('<d',
      redis.call('HGET', key, struct.pack('<c1d', 'w', first_ticket)), 54)
  end
  if struct.unpack('<d', near[1], 54) <= now or is_first and waiting > 1 and first_end <= now
    or type(redis.pcall('HDEL', key, 'q' .. name, field, before, after)) ~= 'number'
  then
    return nil
  end
  local needed_end = now + 2 * @DELIVERY_WINDOW@
  local moved = stored_end < needed_end
  if moved then
    stored_end = needed_end + @SLACK@
  end
  local session = string.sub(name, 1, 16)
  local left = struct.pack('<c45I4ddddddd', kept, waiting - 1, token, stored_end, earliest,
    next_ticket, first_ticket, first_end, waiters_end) .. string.sub(stored, 106)
  if is_first then
    redis.call('HSET', key, 'head', left, 'm' .. session, watermark)
  else
    redis.call('HSET', key, 'head', left, 'm' .. session, watermark, 'w' .. from, to, 'w' .. to, from)
  end
  if moved then
    redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
  end
  return struct.pack('<c1dc1', @DONE@, now, 'L')
end
