-- A reader of a hash releases its only hold. Others are left, and a writer is first in the queue. The
-- holder in the last slot takes the slot of this one. A sole holder moves to the head.
local slot, _, _, _, old_holds = struct.unpack('<I4dBBc0I4c0', holder)
local count = struct.unpack('<I4', stored, 39)
local last = string.format('s%.0f', count)
local moved = stored_end < watermark_end
if moved then
  stored_end = watermark_end + @SLACK@
end
if string.sub(old_holds, 2) == string.sub(argument, 17, 24) then
  -- If this is the last slot, the one before it is written as it was.
  local from = slot == count and count - 1 or count
  local other = redis.call('HGET', KEYS[1], string.format('s%.0f', from))
  local record = redis.call('HGET', KEYS[1], 'h' .. other)
  local left = struct.pack('<c34I4I4I4I4ddddddd', kept, count - 1, count - 1, 0, waiting, token,
    stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end)
  local written
  if count == 2 then
    written = redis.pcall('HDEL', KEYS[1], 'h' .. session .. owner, 'h' .. other, 's1', 's2')
  else
    written = redis.pcall('HDEL', KEYS[1], 'h' .. session .. owner, last)
  end
  if type(written) == 'number' and count == 2 then
    redis.call('HSET', KEYS[1], 'head', left .. other .. string.sub(record, 5), 'm' .. session,
      watermark)
  elseif type(written) == 'number' then
    local to = math.min(slot, count - 1)
    redis.call('HSET', KEYS[1], 'head', left, 'm' .. session, watermark,
      'h' .. other, struct.pack('<I4', to) .. string.sub(record, 5),
      string.format('s%.0f', to), other)
  end
  if type(written) == 'number' then
    if moved then
      @SET_EXPIRY@
    end
    return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
  end
end
