-- A reader of a hash releases its only hold. Others are left, and a writer is first in the queue, so
-- nobody gets the lock. The holder in the last slot takes the slot of this one. A sole holder that is
-- left moves to the head.
local slot, _, _, _, old_holds = struct.unpack('<I4dBBc0I4c0', holder)
local count = struct.unpack('<I4', stored, 38)
local needed_end = watermark_end
@MOVE_STORED_END@
if string.sub(old_holds, 2) == string.sub(argument, 17, 24) then
  -- If this slot is the last one, the one before it is written as it was.
  local from = slot == count and count - 1 or count
  local other = redis.call('HGET', KEYS[1], string.format('s%.0f', from))
  local record = string.sub(redis.call('HGET', KEYS[1], 'h' .. other), 5)
  local left = struct.pack('<c33I4I4I4I4ddddddd', kept, count - 1, count - 1, 0, waiting, token,
    stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end)
  local gone, written = 'h' .. session .. owner, nil
  if count == 2 then
    written = redis.pcall('HDEL', KEYS[1], gone, 'h' .. other, 's1', 's2')
  else
    written = redis.pcall('HDEL', KEYS[1], gone, string.format('s%.0f', count))
  end
  if type(written) == 'number' then
    if count == 2 then
      redis.call('HSET', KEYS[1], 'head', left .. other .. record, 'm' .. session, watermark)
    else
      local to = math.min(slot, count - 1)
      redis.call('HSET', KEYS[1], 'head', left, 'm' .. session, watermark,
        'h' .. other, struct.pack('<I4', to) .. record, string.format('s%.0f', to), other)
    end
    if moved then
      @SET_EXPIRY@
    end
    return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
  end
end
