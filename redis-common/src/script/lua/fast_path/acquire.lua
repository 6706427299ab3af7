-- Acquire of a free key: no holders, no waiters.
local stored = first
if stored == false or type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.sub(stored, 95, 96) == '\0\0' -- no holder
  and #stored >= @SHORTEST@
then
  local session, sequence, owner, wanted, mode, permits, lease, _, _, deliver_before, floor, _, _,
    holder_limit, label = struct.unpack('<c16dc8c13c1I4dBdddI4I4I4Bc0', argument)
  local token, stored_end, last_scan, tail, left, moved = 0, 0, 0, '', 0, true
  local usable = holder_limit > 0 and (mode ~= 'P' or permits <= struct.unpack('<I4', wanted, 2))
    and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
  if usable and stored then
    local before
    token, stored_end, _, last_scan, before = struct.unpack('<ddddc16', stored, 17)
    if stored_end <= now then
      token, stored_end, last_scan = 0, 0, 0 -- counts as empty
    else
      moved = false
      local seen, seen_end
      left, seen, seen_end = struct.unpack('<Hdd', stored, 97)
      local size = @SHORTEST@ + string.byte(stored, @SHORTEST@) + 33 * left
      usable = usable and #stored == size -- else it is damaged
      if left > 0 then
        tail = string.sub(stored, @SHORTEST@ + 1 + string.byte(stored, @SHORTEST@))
      end
      if before == session then
        usable = usable and (sequence > seen or seen_end <= now)
      else
        local own = usable and left > 0 and string.find(tail, session, 1, true)
        if own and own % 33 ~= 1 then
          usable = false -- not the start of a watermark
        elseif own then
          local own_seen, own_end = struct.unpack('<dd', tail, own + 16)
          usable = sequence > own_seen or own_end <= now
          tail, left = string.sub(tail, 1, own - 1) .. string.sub(tail, own + 33), left - 1
        end
        if seen_end > now then
          tail, left = before .. string.sub(stored, 99, 115) .. tail, left + 1
        end
      end
      -- Mostly the oldest watermarks are last.
      while usable and left > 0 and struct.unpack('<d', tail, 33 * left - 8) <= now do
        tail, left = string.sub(tail, 1, -34), left - 1
      end
      usable = usable and left < @PACKED_RECORDS@ - 1
      -- A client that tried in vain has left a newer one behind them. So each acquire looks at another one, and the
      -- general part removes all that have expired.
      if usable and left > 0 and struct.unpack('<d', tail, 33 * (sequence % left) + 25) <= now then
        usable = false
      end
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
    local raw, flags = string.sub(argument, 17, 24), 0
    if mode == 'P' then
      -- Each permit hold is a separate holder, named by its operation, with its own token.
      owner, flags = raw, @OWN_TOKEN@
    end
    local rest, written = struct.pack('<ddddc16c8c8c1I4dBBBHddc1Bc0', token, stored_end, holder_end,
      last_scan, session, raw, owner, mode, permits, holder_end, flags, 1, 0, left, sequence,
      watermark_end, @REASON_NONE@, #label, label) .. tail, nil
    if moved then
      written = redis.pcall('SET', key, @MAGIC@ .. wanted .. rest, 'PXAT',
        math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    elseif #rest == #stored - 16 and string.sub(stored, 4, 16) == wanted then
      written = type(redis.pcall('SETRANGE', key, '16', rest)) == 'number'
    else
      written = redis.pcall('SET', key, @MAGIC@ .. wanted .. rest, 'KEEPTTL').ok
    end
    if written then
      return struct.pack('<c1dc1dI4d', @DONE@, now, 'A', token, 1, lease)
    end
  end
end

