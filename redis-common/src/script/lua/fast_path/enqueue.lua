-- Acquire of a key with one exclusive hold: appends a waiter to the queue, or answers with the holder.
if type(first) == 'string' and string.sub(first, 1, 3) == @MAGIC@ and string.byte(first, 49) == 1
  and string.byte(first, 4) ~= @SEMAPHORE@
then
  local stored, argument = first, ARGV[1]
  local session, sequence, owner, wanted, mode, permits, lease, waits, wait_until, deliver_before,
    floor, _, limit, _, label = struct.unpack('<c16dc8c13c1I4dBdddI4I4I4Bc0', argument)
  local token, stored_end, earliest, _, _, waiters, watermarks, skip, holder_id, holder_end, flags,
    holder_label, holds, at = struct.unpack('<ddddBBBHc24dBBc0I4c0', stored, 17)
  local gap_at = at + 33 * watermarks
  local queue_at = gap_at + skip
  local usable = @ONE_EXCLUSIVE_HOLD@ and mode ~= 'P'
    and string.sub(stored, 4, 16) == wanted and holder_id ~= session .. owner
    and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
    and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
  local next_ticket, head = 1, 1
  if usable and waiters > 0 then
    next_ticket = struct.unpack('<d', stored, #stored - 7)
    head = struct.unpack('<d', stored, queue_at)
    local head_end, _, head_flags = struct.unpack('<ddB', stored, queue_at + 61)
    -- The general part drops an expired waiter and skips an unreachable one.
    usable = head_end > now and head_flags < @UNREACHABLE@
      -- The operation may be in the queue already: a waiter can outlive its watermark.
      and not string.find(stored, session .. string.sub(argument, 17, 24), queue_at, true)
  end
  local own = usable and watermarks > 0 and string.find(stored, session, at, true)
  if own and own >= gap_at then
    own = false
  elseif own then
    local seen, seen_end = struct.unpack('<dd', stored, own + 16)
    usable = (own - at) % 33 == 0 -- the start of a watermark
      and (sequence > seen or seen_end <= now)
  end
  local enters = waits > 0 and wait_until > now
  local records = 1 + waiters + watermarks + (own and 0 or 1) + (enters and 1 or 0)
  local most = (enters or waiters > 0) and @QUEUE_RECORDS@ or @PACKED_RECORDS@
  usable = usable and records <= most
  local watermark = struct.pack('<c16ddc1', session, sequence, now + 2 * @DELIVERY_WINDOW@,
    @REASON_NONE@)
  local waiter, waiter_end, waiting = '', 0, waiters
  if usable and enters then
    usable = waiters < limit
    waiter_end = math.min(now + struct.unpack('<d', wanted, 6), wait_until)
    waiter = struct.pack('<dc16c8c8c1I4ddddBBBc0', next_ticket, session,
      string.sub(argument, 17, 24), owner, mode, permits, floor, lease, waiter_end, wait_until,
      waits - 1, 0, #label, label)
    next_ticket, waiters = next_ticket + 1, waiters + 1
  end
  if usable then
    local needed_end = math.max(now + 2 * @DELIVERY_WINDOW@, waiter_end + @RETENTION@)
    @MOVE_STORED_END@
    local written
    if own and waiting > 0 and not moved then
      written = type(redis.pcall('SETRANGE', KEYS[1], own - 1, watermark)) == 'number'
      if written and waiters > waiting then
        redis.call('SETRANGE', KEYS[1], '49', string.char(waiters))
        redis.call('SETRANGE', KEYS[1], #stored - 8, waiter .. struct.pack('<d', next_ticket))
      end
    else
      if own then
        watermark, watermarks = watermark .. string.sub(stored, at, own - 1), watermarks - 1
      end
      local queue, next = '', ''
      if waiting > 0 then
        queue = string.sub(stored, queue_at, -9)
      end
      if waiters > 0 then
        next = struct.pack('<d', next_ticket)
      end
      local value = string.sub(stored, 1, 24)
        .. struct.pack('<dc17BBH', stored_end, string.sub(stored, 33, 49), waiters, watermarks + 1,
          0)
        .. string.sub(stored, 54, at - 1) .. watermark
        .. string.sub(stored, own and own + 33 or at, gap_at - 1) .. queue .. waiter .. next
      @SET_VALUE@
    end
    if written then
      local retry_after = math.max(earliest - now, 1000)
      if waiters == waiting then
        return struct.pack('<c1dc1dBBc0', @DONE@, now, 'H', retry_after, 1, #holder_label,
          holder_label)
      end
      local ahead = math.min(next_ticket - 1 - head, waiting)
      local waiter_lease = struct.unpack('<d', wanted, 6)
      @POLL_AFTER@
      return struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead, poll_after, waiter_end - now)
    end
  end
end

