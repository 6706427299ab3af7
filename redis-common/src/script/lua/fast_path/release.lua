-- Release of the only hold of the only holder, without waiters.
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.sub(stored, 49, 50) == '\1\0' -- one holder, no waiter
then
  local session, sequence, owner = struct.unpack('<c16dc8', argument)
  local head, stored_end, _, _, _, _, watermarks, _, holder_session, holder_owner, holder_end,
    flags, _, holds, at = struct.unpack('<c24dddBBHBc16c8dBBc0I4c0', stored)
  local raw = string.sub(argument, 17, 24)
  if flags == @OWN_TOKEN@ then
    -- A semaphore's holder is named by its operation. Its token and permits follow.
    owner, at = raw, at + 12
  end
  if stored_end > now and watermarks < @PACKED_RECORDS@
    and holder_session == session and holder_owner == owner and holder_end > now
    and flags <= @OWN_TOKEN@ and #holds == 9 and string.sub(holds, 2) == raw
  then
    local others, left, seen, reason, watermark_end = '', 0, sequence, @REASON_RELEASED@,
      now + 2 * @DELIVERY_WINDOW@
    local own = watermarks > 0 and string.find(stored, session, at, true)
    local usable = not own or (own - at) % 33 == 0
    if own and usable then
      local highest, highest_end, known_reason = struct.unpack('<ddc1', stored, own + 16)
      if highest_end > now and highest > sequence then
        seen, reason = highest, known_reason
      end
      left = watermarks - 1
      if left > 0 then
        others = string.sub(stored, at, own - 1) .. string.sub(stored, own + 33)
      end
    elseif watermarks > 0 then
      others, left = string.sub(stored, at), watermarks
    end
    -- The oldest watermarks are last.
    while usable and left > 0 and struct.unpack('<d', others, 33 * left - 8) <= now do
      others, left = string.sub(others, 1, -34), left - 1
    end
    local needed_end = watermark_end
    local moved = stored_end < needed_end
    if moved then
      stored_end = needed_end + @SLACK@
    end
    if usable then
      local value = struct.pack('<c24dc16BBHBc16ddc1', head, stored_end, string.sub(stored, 33, 48),
        0, 0, left + 1, 0, session, seen, watermark_end, reason) .. others
      local written
      if moved then
        written = redis.pcall('SET', key, value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
      else
        written = redis.pcall('SET', key, value, 'KEEPTTL').ok
      end
      if written then
        return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
      end
    end
  end
end

