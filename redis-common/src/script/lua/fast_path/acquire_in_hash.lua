-- Acquire on a hash:
--   a free key: takes it
--   one exclusive hold, or one reader if a writer is first in the queue: enters the queue, or
--   answers with the holder
--   a full semaphore, or several readers if a writer is first in the queue: enters the queue
if type(first) == 'table' then
  local fields = redis.pcall('HMGET', key, 'head', 'm' .. string.sub(argument, 1, 16),
    'q' .. string.sub(argument, 1, 24))
  local stored, known, ticket = fields[1], fields[2], fields[3]
  local session, sequence, owner, wanted, mode, permits, lease, waits, wait_until, deliver_before,
    floor, _, limit, holder_limit, label = struct.unpack('<c16dc8c13c1I4dBdddI4I4I4Bc0', argument)
  local raw = string.sub(argument, 17, 24)
  if not stored or ticket or deliver_before < now or deliver_before > now + @DELIVERY_WINDOW@ then
    return nil -- the operation is not new, or may be a waiter without a watermark
  end
  if known then
    local seen, seen_end = struct.unpack('<dd', known)
    if sequence <= seen and seen_end > now then
      return nil
    end
  end
  local watermark = struct.pack('<ddc1', sequence, now + 2 * @DELIVERY_WINDOW@, @REASON_NONE@)
  local find_head = @FIND_HEAD@
  local head = find_head(key, stored, now)
  if head then
    local kept, waiting, token, stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end,
      holder_id, _, _, holder_label = struct.unpack('<c45I4dddddddc24dBBc0', head)
    local usable = string.sub(stored, 4, 16) == wanted and holder_id ~= session .. owner
      and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
    local enters = waits > 0 and wait_until > now
    if usable and head ~= stored then
      -- A reader may enter again, and a holder may outlive its watermark.
      local own_id = session .. (mode == 'P' and raw or owner)
      usable = enters and string.sub(stored, 106, 129) ~= own_id
        and not redis.call('HGET', key, 'h' .. own_id)
    end
    local needed_end, waiter_end, waiter_lease = now + 2 * @DELIVERY_WINDOW@, 0, 0
    if enters then
      -- The general part sweeps the watermarks now and then.
      usable = usable and waiting < limit and next_ticket % @SWEEP_TICKETS@ ~= 0
      waiter_lease = struct.unpack('<d', wanted, 6)
      waiter_end = math.min(now + waiter_lease, wait_until)
      needed_end = math.max(needed_end, waiter_end + @RETENTION@)
    end
    local moved = stored_end < needed_end
    if moved then
      stored_end = needed_end + @SLACK@
    end
    if usable and enters then
      if waiting == 0 then
        first_ticket, first_end, waiters_end = next_ticket, waiter_end, waiter_end
      end
      local name = struct.pack('<d', next_ticket)
      local added = redis.pcall('HSET', key,
        'head', struct.pack('<c45I4ddddddd', kept, waiting + 1, token, stored_end, earliest,
          next_ticket + 1, first_ticket, first_end, math.min(waiters_end, waiter_end))
          .. string.sub(stored, 106),
        'w' .. name, struct.pack('<c16c8c8c1I4ddddBBBc0', session, raw, owner, mode, permits, floor,
          lease, waiter_end, wait_until, waits - 1, 0, #label, label),
        'q' .. string.sub(argument, 1, 24), name,
        'm' .. session, watermark)
      if type(added) == 'number' then
        if moved then
          redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
        end
        local poll_after = @POLL_AFTER@
        local ahead = math.min(next_ticket - first_ticket, waiting)
        return struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead,
          poll_after(waiter_lease, ahead, math.max(earliest - now, 1000), session), waiter_end - now)
      end
    elseif usable and known and not moved
      and type(redis.pcall('HSET', key, 'm' .. session, watermark)) == 'number'
    then
      return struct.pack('<c1dc1dBBc0', @DONE@, now, 'H', math.max(earliest - now, 1000), 1,
        #holder_label, holder_label)
    end
  elseif mode ~= 'P' and string.sub(stored, 1, 3) == @MAGIC@
    and string.sub(stored, 38, 49) == @NO_COUNTS@ -- no holder, no waiter
  then
    local token, stored_end, _, next_ticket, _, _, waiters_end = struct.unpack('<ddddddd', stored, 50)
    if stored_end > now and holder_limit > 0
      and floor <= math.min(math.max(now, token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@)
      -- The general part turns a hash into a string when nobody has waited for long.
      and (waiters_end + 2 * @DELIVERY_WINDOW@ > now or redis.call('HLEN', key) > @SMALL_HASH@)
    then
      local holder_end = now + lease
      token = math.max(token + 1, now, floor + 1)
      local needed_end = math.max(now + 2 * @DELIVERY_WINDOW@, holder_end + @RETENTION@)
      local moved = stored_end < needed_end
      if moved then
        stored_end = needed_end + @SLACK@
      end
      local used = mode == 'X' and struct.unpack('<I4', wanted, 2) or 1
      local added = redis.pcall('HSET', key,
        'head', struct.pack('<c3c13c17I4I4I4I4dddddddc16c8dBBc0I4c1c8', @MAGIC@, wanted,
          string.sub(stored, 17, 33), used, 1, 0, 0, token, stored_end, holder_end, next_ticket, 0,
          0, waiters_end, session, owner, holder_end, 0, #label, label, 9, mode, raw),
        'm' .. session, watermark)
      if type(added) == 'number' then
        if moved then
          redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
        end
        return struct.pack('<c1dc1dI4d', @DONE@, now, 'A', token, 1, lease)
      end
    end
  end
end

