-- Release of the only hold of the only holder, if it is exclusive and the first
-- waiter wants an exclusive hold, listens, and is heard. The waiter behind it, if any, is live and not
-- unreachable. Offers the key to the first waiter and publishes the grant.
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.byte(stored, 49) == 1 and string.byte(stored, 50) > 0
  and string.byte(stored, 4) ~= @SEMAPHORE@
then
  local argument = ARGV[1]
  local session, sequence, owner = struct.unpack('<c16dc8', argument)
  local waiter_lease, token, stored_end, earliest, last_scan, _, waiters, watermarks, skip,
    holder_id, holder_end, flags, holder_label, holds, at =
    struct.unpack('<dddddBBBHc24dBBc0I4c0', stored, 9)
  local gap_at = at + 33 * watermarks
  local _, to, raw, to_owner, mode, _, floor, lease, waiter_end, _, waiter_flags, _, label,
    next_at = struct.unpack('<dc16c8c8c1I4ddddBBBc0', stored, gap_at + skip)
  local offer_end = @OFFER_END@
  local usable = @ONE_EXCLUSIVE_HOLD@ and holder_id == session .. owner
    and string.sub(holds, 2) == string.sub(argument, 17, 24)
    and mode == 'X' and waiter_end > now and waiter_flags == @LISTENING@
  if usable and waiters > 1 then
    local after_end, _, after_flags = struct.unpack('<ddB', stored, next_at + 61)
    -- The general part drops an expired waiter and skips an unreachable one.
    usable = after_end > now and after_flags < @UNREACHABLE@
  end
  local seen, reason, watermark_end = sequence, @REASON_RELEASED@, now + 2 * @DELIVERY_WINDOW@
  local own = usable and watermarks > 0 and string.find(stored, session, at, true)
  if own and own >= gap_at then
    own = false
  elseif own then
    usable = (own - at) % 33 == 0 -- the start of a watermark
    local highest, highest_end, known_reason = struct.unpack('<ddc1', stored, own + 16)
    if highest_end > now and highest > sequence then
      seen, reason = highest, known_reason
    end
  end
  usable = usable and (own and 0 or 1) + watermarks + waiters <= @QUEUE_RECORDS@
  local key = KEYS[1]
  local channel = usable and @CHANNEL@
  -- The general part marks an unreachable waiter.
  if usable and @LISTENS@ then
    local watermark = struct.pack('<c16ddc1', session, seen, watermark_end, reason)
    token = math.max(token + 1, now, floor + 1)
    local needed_end = math.max(watermark_end, offer_end + @RETENTION@)
    @MOVE_STORED_END@
    -- If the next holder's record has the same size, it overwrites this one. The granted waiter
    -- remains as a gap before the queue. A gap that grows too large is closed by a full write.
    local in_place = own and waiters > 1 and #label == #holder_label and not moved
      and next_at - gap_at <= @MAX_SKIP@
    skip = in_place and next_at - gap_at or 0
    if not own then
      watermarks = watermarks + 1
    end
    local head_and_holder = struct.pack('<ddddBBBHc16c8dBBc0I4c1c8', token, stored_end, offer_end,
      last_scan, 1, waiters - 1, watermarks, skip, to, to_owner, offer_end, 0, #label, label, 9,
      'X', raw)
    local written
    if in_place then
      written = type(redis.pcall('SETRANGE', KEYS[1], '16', head_and_holder)) == 'number'
      if written then
        redis.call('SETRANGE', KEYS[1], own - 1, watermark)
      end
    else
      local value = string.sub(stored, 1, 16) .. head_and_holder .. watermark
        .. string.sub(stored, at, (own or gap_at) - 1)
        .. string.sub(stored, own and own + 33 or gap_at, gap_at - 1)
        .. (waiters > 1 and string.sub(stored, next_at) or '')
      @SET_VALUE@
    end
    if written then
      @PUBLISH_GRANT@
      return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
    end
  end
end

