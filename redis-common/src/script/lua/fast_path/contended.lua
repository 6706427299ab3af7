-- Acquire of a key with one exclusive hold, without waiting: answers with the holder.
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@ and string.byte(stored, 49) == 1
  and string.byte(stored, 4) ~= @SEMAPHORE@
then
  local session, sequence, owner, wanted, mode, _, _, waits, wait_until, deliver_before, floor =
    struct.unpack('<c16dc8c13c1I4dBddd', argument)
  local token, stored_end, earliest, _, _, _, watermarks, _, holder_id, holder_end, flags, label, holds,
    at = struct.unpack('<ddddBBHBc24dBBc0I4c0', stored, 17)
  local usable = stored_end > now and earliest > now and holder_end > now and flags < @OWN_TOKEN@
    and #holds == 9 and string.byte(holds) == @EXCLUSIVE@
    and string.sub(stored, 4, 16) == wanted and holder_id ~= session .. owner and mode ~= 'P'
    and (waits == 0 or wait_until <= now)
    and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
    and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
  local own = usable and watermarks > 0 and string.find(stored, session, at, true)
  if own then
    local seen, seen_end = struct.unpack('<dd', stored, own + 16)
    usable = (own - at) % 33 == 0 -- the start of a watermark
      and (sequence > seen or seen_end <= now)
  end
  if usable and (own or watermarks < @PACKED_RECORDS@ - 1) then
    local needed_end = now + 2 * @DELIVERY_WINDOW@
    local watermark = struct.pack('<c16ddc1', session, sequence, needed_end, @REASON_NONE@)
    local moved = stored_end < needed_end
    if moved then
      stored_end = needed_end + @SLACK@
    end
    -- The oldest watermarks are last.
    local value = string.sub(stored, 1, 24)
      .. struct.pack('<dc18H', stored_end, string.sub(stored, 33, 50), watermarks + (own and 0 or 1))
      .. string.sub(stored, 53, at - 1) .. watermark
    if own then
      value = value .. string.sub(stored, at, own - 1) .. string.sub(stored, own + 33)
    else
      value = value .. string.sub(stored, at)
    end
    local written
    if moved then
      written = redis.pcall('SET', key, value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    else
      written = redis.pcall('SET', key, value, 'KEEPTTL').ok
    end
    if written then
      return struct.pack('<c1dc1dBBc0', @DONE@, now, 'H', math.max(earliest - now, 1000), 1, #label, label)
    end
  end
end

