-- Acquire on a hash:
--   a free key: takes it
--   one exclusive hold, or one reader if a writer is first in the queue: enters the queue, or
--   answers with the holder
--   a full semaphore, or several readers if a writer is first in the queue: enters the queue
if type(first) == 'table' then
  local argument = ARGV[1]
  local fields = redis.pcall('HMGET', KEYS[1], 'head', 'm' .. string.sub(argument, 1, 16),
    'q' .. string.sub(argument, 1, 24))
  local stored, known, ticket = fields[1], fields[2], fields[3]
  local session, sequence, owner, wanted, mode, permits, lease, waits, wait_until, deliver_before,
    floor, _, limit, holder_limit, label = struct.unpack('<c16dc8c13c1I4dBdddI4I4I4Bc0', argument)
  local raw, stale = string.sub(argument, 17, 24), false
  if known then
    local seen, seen_end = struct.unpack('<dd', known)
    stale = sequence <= seen and seen_end > now
  end
  local watermark = struct.pack('<ddc1', sequence, now + 2 * @DELIVERY_WINDOW@, @REASON_NONE@)
  @FIND_HEAD@
  if stale or ticket then
    -- For the general part: the operation is not new, or may be a waiter without a watermark.
  elseif head then
    @READ_HEAD@
    local usable = @ONE_HOLD@
      and string.sub(stored, 4, 16) == wanted and holder_id ~= session .. owner
      and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
      and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
      and @FIRST_WAITER_LIVES@
    local enters = waits > 0 and wait_until > now
    if usable and head ~= stored then
      -- A reader may enter again, and a holder may outlive its watermark.
      local own_id = session .. (mode == 'P' and raw or owner)
      usable = enters and string.sub(stored, 106, 129) ~= own_id
        and not redis.call('HGET', KEYS[1], 'h' .. own_id)
    end
    local needed_end, waiter_end, waiter_lease = now + 2 * @DELIVERY_WINDOW@, 0, 0
    if enters then
      -- The general part sweeps the watermarks now and then.
      usable = usable and waiting < limit and next_ticket % @SWEEP_TICKETS@ ~= 0
      waiter_lease = struct.unpack('<d', wanted, 6)
      waiter_end = math.min(now + waiter_lease, wait_until)
      needed_end = math.max(needed_end, waiter_end + @RETENTION@)
    end
    @MOVE_STORED_END@
    if usable and enters then
      if waiting == 0 then
        first_ticket, first_end, waiters_end = next_ticket, waiter_end, waiter_end
      end
      local name = struct.pack('<d', next_ticket)
      local added = redis.pcall('HSET', KEYS[1],
        'head', struct.pack('<c45I4ddddddd', kept, waiting + 1, token, stored_end, earliest,
          next_ticket + 1, first_ticket, first_end, math.min(waiters_end, waiter_end))
          .. string.sub(stored, 106),
        'w' .. name, struct.pack('<c16c8c8c1I4ddddBBBc0', session, raw, owner, mode, permits, floor,
          lease, waiter_end, wait_until, waits - 1, 0, #label, label),
        'q' .. string.sub(argument, 1, 24), name,
        'm' .. session, watermark)
      if type(added) == 'number' then
        if moved then
          @SET_EXPIRY@
        end
        local ahead = math.min(next_ticket - first_ticket, waiting)
        local retry_after = math.max(earliest - now, 1000)
        @POLL_AFTER@
        return struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead, poll_after, waiter_end - now)
      end
    elseif usable and known and not moved
      and type(redis.pcall('HSET', KEYS[1], 'm' .. session, watermark)) == 'number'
    then
      return struct.pack('<c1dc1dBBc0', @DONE@, now, 'H', math.max(earliest - now, 1000), 1,
        #holder_label, holder_label)
    end
  elseif stored and mode ~= 'P' and string.sub(stored, 1, 3) == @MAGIC@
    and string.sub(stored, 38, 49) == @NO_COUNTS@ -- no holder, no waiter
  then
    local token, stored_end, _, next_ticket = struct.unpack('<dddd', stored, 50)
    if stored_end > now and holder_limit > 0
      and deliver_before >= now and deliver_before <= now + @DELIVERY_WINDOW@
      and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
    then
      local holder_end = now + lease
      token = math.max(token + 1, now, floor + 1)
      local needed_end = math.max(now + 2 * @DELIVERY_WINDOW@, holder_end + @RETENTION@)
      @MOVE_STORED_END@
      local used = mode == 'X' and struct.unpack('<I4', wanted, 2) or 1
      local added = redis.pcall('HSET', KEYS[1],
        'head', struct.pack('<c3c13c17I4I4I4I4dddddddc16c8dBBc0I4c1c8', @MAGIC@, wanted,
          string.sub(stored, 17, 33), used, 1, 0, 0, token, stored_end, holder_end, next_ticket, 0,
          0, 0, session, owner, holder_end, 0, #label, label, 9, mode, raw),
        'm' .. session, watermark)
      if type(added) == 'number' then
        if moved then
          @SET_EXPIRY@
        end
        return struct.pack('<c1dc1dI4d', @DONE@, now, 'A', token, 1, lease)
      end
    end
  end
end

