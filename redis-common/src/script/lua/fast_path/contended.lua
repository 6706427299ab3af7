-- Acquire of a key with one exclusive hold, without waiting: answers with the holder.
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.sub(stored, 95, 96) == '\1\0' -- one holder
  and #stored >= @SHORTEST@
  and string.byte(stored, 81) == @EXCLUSIVE@ and string.byte(argument, 59) == 0 -- doesn't wait
then
  local session, sequence, owner, wanted, _, _, _, _, _, deliver_before, floor =
    struct.unpack('<c16dc8c13c1I4dBddd', argument)
  local token, stored_end, earliest, _, before, _, holder_owner, _, _, holder_end, _, _, _, watermarks,
    seen, seen_end, _, label, tail = struct.unpack('<ddddc16c8c8c1I4dBBBHddc1Bc0', stored, 17)
  local watermark_end, at, own = now + 2 * @DELIVERY_WINDOW@, 99, before == session
  local usable = stored_end >= watermark_end and earliest > now and holder_end > now
    and string.sub(stored, 4, 16) == wanted
    and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
    and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
    and (not own or holder_owner ~= owner)
  if usable and not own and watermarks > 0 then
    own = string.find(stored, session, tail, true)
    if own then
      at = own + 16
      seen, seen_end = struct.unpack('<dd', stored, at)
      usable = (own - tail) % 33 == 0 -- the start of a watermark
    end
  end
  local written
  local watermark = struct.pack('<ddc1', sequence, watermark_end, @REASON_NONE@)
  if usable and own and (sequence > seen or seen_end <= now) then
    written = type(redis.pcall('SETRANGE', key, at - 1, watermark)) == 'number'
  elseif usable and not own and watermarks < @PACKED_RECORDS@ - 1 then
    written = type(redis.pcall('SETRANGE', key, #stored, session .. watermark)) == 'number'
    if written then
      redis.call('SETRANGE', key, '96', struct.pack('<H', watermarks + 1))
    end
  end
  if written then
    return struct.pack('<c1dc1dBBc0', @DONE@, now, 'H', math.max(earliest - now, 1000), 1, #label, label)
  end
end

