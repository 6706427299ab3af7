-- One of several readers of a hash releases its only hold. A writer is first in the queue, so nobody gets
-- the lock. The holder in the last slot takes the slot of this one. A sole holder that is left moves to
-- the head. Returns the answer, or nothing if the reader has other holds.
function(key, stored, holder_id, holder, raw, watermark, now)
  local slot, _, _, _, old_holds = struct.unpack('<I4dBBc0I4c0', holder)
  if string.sub(old_holds, 2) ~= raw then
    return nil
  end
  local kept, _, count, _, waiting, token, stored_end = struct.unpack('<c33I4I4I4I4dd', stored)
  local needed_end = now + 2 * @DELIVERY_WINDOW@
  local moved = stored_end < needed_end
  if moved then
    stored_end = needed_end + @SLACK@
  end
  -- If this slot is the last one, the one before it is written as it was.
  local from = slot == count and count - 1 or count
  local other = redis.call('HGET', key, string.format('s%.0f', from))
  local record = string.sub(redis.call('HGET', key, 'h' .. other), 5)
  local left = struct.pack('<c33I4I4I4I4dd', kept, count - 1, count - 1, 0, waiting, token, stored_end)
    .. string.sub(stored, 66, 105)
  local written
  if count == 2 then
    written = redis.pcall('HDEL', key, 'h' .. holder_id, 'h' .. other, 's1', 's2')
  else
    written = redis.pcall('HDEL', key, 'h' .. holder_id, string.format('s%.0f', count))
  end
  if type(written) ~= 'number' then
    return nil
  end
  local watermark_field = 'm' .. string.sub(holder_id, 1, 16)
  if count == 2 then
    redis.call('HSET', key, 'head', left .. other .. record, watermark_field, watermark)
  else
    local to = math.min(slot, count - 1)
    redis.call('HSET', key, 'head', left, watermark_field, watermark,
      'h' .. other, struct.pack('<I4', to) .. record, string.format('s%.0f', to), other)
  end
  if moved then
    redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
  end
  return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
end
