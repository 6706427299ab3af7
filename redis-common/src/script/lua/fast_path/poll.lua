-- Poll of a waiter of a key with one exclusive hold.
if fast_path then
  first = redis.pcall('GET', KEYS[1])
end
if type(first) == 'string' and string.sub(first, 1, 3) == @MAGIC@ and string.byte(first, 49) == 1
  and string.byte(first, 50) > 0 and string.byte(first, 4) ~= @SEMAPHORE@
then
  local stored = first
  local attempt, listening = struct.unpack('<c24xxxxxxxxB', ARGV[1])
  local stored_end, earliest, _, _, waiters, watermarks, skip, holder_id, holder_end, flags, _,
    holds, at =
    struct.unpack('<dddBBBHc24dBBc0I4c0', stored, 25)
  local queue_at = at + 33 * watermarks + skip
  local found = string.find(stored, attempt, queue_at, true)
  local usable = found and @ONE_EXCLUSIVE_HOLD@
    and string.sub(holder_id, 1, 16) ~= string.sub(attempt, 1, 16)
  at = queue_at -- the start of a waiter
  if usable and found ~= at + 8 then
    local head_end, _, head_flags = struct.unpack('<ddB', stored, at + 61)
    -- The general part drops an expired waiter and skips an unreachable one.
    usable = head_end > now and head_flags < @UNREACHABLE@
  end
  if usable then
    local ticket, ahead = struct.unpack('<d', stored, found - 8), 0
    -- Waiters differ in length: check that a waiter starts at the position that was found.
    while ahead < waiters and at < found - 8 do
      at, ahead = at + 80 + string.byte(stored, at + 79), ahead + 1
    end
    local waiter_end, wait_until = struct.unpack('<dd', stored, found + 53)
    if at == found - 8 and waiter_end > now then
      local waiter_lease = struct.unpack('<d', stored, 9)
      waiter_end = math.min(now + waiter_lease, wait_until)
      local needed_end = waiter_end + @RETENTION@
      @MOVE_STORED_END@
      local fresh, written = struct.pack('<ddB', waiter_end, wait_until, listening), nil
      if moved then
        local value = string.sub(stored, 1, 24)
          .. struct.pack('<d', stored_end) .. string.sub(stored, 33, found + 52)
          .. fresh .. string.sub(stored, found + 70)
        written = redis.pcall('SET', KEYS[1], value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
      else
        written = type(redis.pcall('SETRANGE', KEYS[1], found + 52, fresh)) == 'number'
      end
      if written then
        ahead = math.min(ticket - struct.unpack('<d', stored, queue_at), waiters - 1)
        local retry_after, session = math.max(earliest - now, 1000), attempt
        @POLL_AFTER@
        return struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead, poll_after, waiter_end - now)
      end
    end
  end
end

