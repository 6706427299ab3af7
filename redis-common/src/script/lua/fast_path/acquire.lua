-- Acquire of a free key: no holders, no waiters.
local stored = first
if stored == false or type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.sub(stored, 49, 50) == '\0\0' -- no holder, no waiter
then
  local session, sequence, owner, wanted, mode, permits, lease, _, _, deliver_before, floor, _, _,
    holder_limit, label = struct.unpack('<c16dc8c13c1I4dBdddI4I4I4Bc0', argument)
  local token, stored_end, last_scan, others, left, moved = 0, 0, 0, '', 0, true
  local usable = holder_limit > 0 and (mode ~= 'P' or permits <= struct.unpack('<I4', wanted, 2))
    and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
  if usable and stored then
    local watermarks
    token, stored_end, _, last_scan, _, _, watermarks = struct.unpack('<ddddBBH', stored, 17)
    if stored_end <= now then
      token, stored_end, last_scan = 0, 0, 0 -- counts as empty
    else
      moved = false
      local own = watermarks > 0 and string.find(stored, session, 54, true)
      if own and own % 33 ~= 21 then
        usable = false -- not the start of a watermark
      elseif own then
        local seen, watermark_end = struct.unpack('<dd', stored, own + 16)
        usable = sequence > seen or watermark_end <= now
        left = watermarks - 1
        if left > 0 then
          others = string.sub(stored, 54, own - 1) .. string.sub(stored, own + 33)
        end
      elseif watermarks > 0 then
        others, left = string.sub(stored, 54), watermarks
      end
      -- The oldest watermarks are last.
      while left > 0 and struct.unpack('<d', others, 33 * left - 8) <= now do
        others, left = string.sub(others, 1, -34), left - 1
      end
      usable = usable and left < @PACKED_RECORDS@ - 1
    end
  end
  if usable and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@) then
    local holder_end, watermark_end = now + lease, now + 2 * @DELIVERY_WINDOW@
    if stored_end < watermark_end then
      stored_end, moved = watermark_end + @SLACK@, true
    end
    if stored_end < holder_end + @RETENTION@ then
      stored_end, moved = holder_end + @RETENTION@ + @SLACK@, true
    end
    token = math.max(token + 1, now, floor + 1)
    local raw, value = string.sub(argument, 17, 24), nil
    if mode == 'P' then
      -- Each permit hold is a separate holder with its own token.
      value = struct.pack('<c3c13ddddBBHBc16c8dBBc0I4c1c8dI4c16ddc1', @MAGIC@, wanted, token,
        stored_end, holder_end, last_scan, 1, 0, left + 1, 0, session, raw, holder_end, @OWN_TOKEN@,
        #label, label, 9, mode, raw, token, permits, session, sequence, watermark_end,
        @REASON_NONE@) .. others
    else
      value = struct.pack('<c3c13ddddBBHBc16c8dBBc0I4c1c8c16ddc1', @MAGIC@, wanted, token,
        stored_end, holder_end, last_scan, 1, 0, left + 1, 0, session, owner, holder_end, 0, #label,
        label, 9, mode, raw, session, sequence, watermark_end, @REASON_NONE@) .. others
    end
    local written
    if moved then
      written = redis.pcall('SET', key, value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    else
      written = redis.pcall('SET', key, value, 'KEEPTTL').ok
    end
    if written then
      return struct.pack('<c1dc1dI4d', @DONE@, now, 'A', token, 1, lease)
    end
  end
end

