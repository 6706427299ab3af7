-- Release of the hold in the fixed place of a string. Nobody waits there, so nobody gets the lock.
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@ and string.byte(stored, 95) == 1
  and #stored >= @SHORTEST@
then
  local operation = string.sub(argument, 1, 32)
  if string.byte(stored, 4) == @SEMAPHORE@ then
    operation = string.sub(argument, 1, 24) .. string.sub(argument, 17, 24)
  end
  local holder_end, _, _, holders, watermarks, highest, highest_end, reason =
    struct.unpack('<dBBBHddc1', stored, 86)
  local stored_end = struct.unpack('<d', stored, 25)
  if string.sub(stored, 49, 80) == operation and holder_end > now and stored_end > now then
    local sequence, watermark_end, written = struct.unpack('<d', argument, 17), now + 2 * @DELIVERY_WINDOW@, nil
    if highest_end <= now or highest <= sequence then
      highest, reason = sequence, @REASON_RELEASED@
    end
    local left = struct.pack('<BBHddc1', 0, holders, watermarks, highest, watermark_end, reason)
    if stored_end < watermark_end then
      stored_end = watermark_end + @SLACK@
      local value = string.sub(stored, 1, 24) .. struct.pack('<d', stored_end)
        .. string.sub(stored, 33, 94) .. left .. string.sub(stored, 116)
      written = redis.pcall('SET', key, value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    else
      written = type(redis.pcall('SETRANGE', key, '94', left)) == 'number'
    end
    if written then
      return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
    end
  end
end

