-- Release on a hash, if the holder has one hold:
--   an exclusive holder: frees the key, or offers it to the first waiter and publishes the grant
--   the only reader, if a writer is first in the queue: the same
--   one of several readers, if a writer is first in the queue: only leaves
--   one permit of a full semaphore: offers it to the first waiter, if that one wants one permit
-- A waiter behind any of these leaves the queue.
if type(first) == 'table' then
  local argument = ARGV[1]
  local session, sequence, owner = struct.unpack('<c16dc8', argument)
  local fields = redis.pcall('HMGET', KEYS[1], 'head', 'm' .. session)
  local stored, known = fields[1], fields[2]
  @FIND_HEAD@
  if head then
    @READ_HEAD@
    local usable = @ONE_HOLD@ and holder_id == session .. owner
      and string.sub(holds, 2) == string.sub(argument, 17, 24)
    local seen, reason, watermark_end = sequence, @REASON_RELEASED@, now + 2 * @DELIVERY_WINDOW@
    if known then
      local highest, highest_end, known_reason = struct.unpack('<ddc1', known)
      if highest_end > now and highest > sequence then
        seen, reason = highest, known_reason
      end
    end
    local watermark = struct.pack('<ddc1', seen, watermark_end, reason)
    -- If a permit is released, its packed holder and its slot.
    local name, permit, slot = string.sub(argument, 1, 24), false, 0
    if not usable and waiting > 0 and @ONE_HOLD@ and holder_id ~= session .. owner
      and @FIRST_WAITER_LIVES@
    then
      local semaphore = string.byte(stored, 4) == @SEMAPHORE@
      local found = redis.call('HMGET', KEYS[1], 'q' .. name,
        'h' .. (semaphore and name or session .. owner))
      local own, holder = found[1], found[2]
      -- The general part serves the only waiter.
      if own and waiting > 1 then
        @LEAVE_QUEUE@
      elseif holder and semaphore then
        local _, old_flags, _, old_holds, _, permits
        slot, _, old_flags, _, old_holds, _, permits = struct.unpack('<I4dBBc0I4c0dI4', holder)
        usable = old_flags == @OWN_TOKEN@ and #old_holds == 9 and permits == 1
        permit = holder
      elseif holder then
        @RELEASE_READER@
      end
    end
    if not usable then
      -- For the general part.
    elseif waiting == 0 then
      local needed_end = watermark_end
      @MOVE_STORED_END@
      -- The general part turns a small hash into a string, and sweeps the watermarks now and then.
      local ticks = string.byte(stored, 25) + 1
      if ticks < @SWEEP_EVERY@ and redis.call('HLEN', KEYS[1]) > @SMALL_HASH@ then
        local written = redis.pcall('HSET', KEYS[1],
          'head', struct.pack('<c24Bc8I4c12ddddddd', kept, ticks, string.sub(kept, 26, 33), 0,
            @NO_COUNTS@, token, stored_end, earliest, next_ticket, 0, 0, 0),
          'm' .. session, watermark)
        if type(written) == 'number' then
          if moved then
            @SET_EXPIRY@
          end
          return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
        end
      end
    else
      local granted = struct.pack('<c1d', 'w', first_ticket)
      local second = struct.pack('<c1d', 'w', first_ticket + 1)
      local waiters = redis.call('HMGET', KEYS[1], granted, second)
      local waiter, after, hole, hole_end = waiters[1], waiters[2], false, false
      local to, raw, to_owner, mode, permits, floor, lease, waiter_end, _, waiter_flags, _, label =
        struct.unpack('<c16c8c8c1I4ddddBBBc0', waiter)
      first_ticket = first_ticket + 1
      if after and #after == 8 then
        hole, hole_end = after, 'w' .. after
        first_ticket = struct.unpack('<d', after) + 1
        after = redis.call('HGET', KEYS[1], struct.pack('<c1d', 'w', first_ticket))
      end
      first_end = 0
      if waiting > 1 then
        first_end = struct.unpack('<d', after, 54)
      else
        first_ticket = 0
      end
      usable = (mode == 'X' or permit and permits == 1) and waiter_end > now
        and waiter_flags == @LISTENING@ and (waiting == 1 or first_end > now)
      local key = KEYS[1]
      local channel = usable and @CHANNEL@
      -- The general part drops an expired waiter, and marks an unreachable one.
      if usable and @LISTENS@ then
        if not full then
          -- A writer follows the last reader.
          kept = string.sub(kept, 1, 33) .. string.sub(kept, 5, 8) .. string.sub(kept, 38)
        end
        local waiter_lease = struct.unpack('<d', stored, 9)
        local offer_end = @OFFER_END@
        token = math.max(token + 1, now, floor + 1)
        local needed_end = math.max(watermark_end, offer_end + @RETENTION@)
        @MOVE_STORED_END@
        local ticket_field = 'q' .. to .. raw
        local written
        if hole then
          written = redis.pcall('HDEL', KEYS[1], granted, ticket_field, second, hole_end)
        else
          written = redis.pcall('HDEL', KEYS[1], granted, ticket_field)
        end
        if permit and type(written) == 'number' then
          redis.call('HDEL', KEYS[1], 'h' .. name)
        end
        if type(written) == 'number' then
          if permit then
            redis.call('HSET', KEYS[1],
              'head', struct.pack('<c45I4ddddddd', kept, waiting - 1, token, stored_end,
                math.min(earliest, offer_end), next_ticket, first_ticket, first_end, waiters_end),
              'h' .. to .. raw, struct.pack('<I4dBBc0I4c1c8dI4', slot, offer_end, @OWN_TOKEN@,
                #label, label, 9, 'P', raw, token, 1),
              string.format('s%.0f', slot), to .. raw,
              'm' .. session, watermark)
          else
            redis.call('HSET', KEYS[1],
              'head', struct.pack('<c45I4dddddddc16c8dBBc0I4c1c8', kept, waiting - 1, token,
                stored_end, offer_end, next_ticket, first_ticket, first_end, waiters_end, to,
                to_owner, offer_end, 0, #label, label, 9, 'X', raw),
              'm' .. session, watermark)
          end
          if moved then
            @SET_EXPIRY@
          end
          @PUBLISH_GRANT@
          return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
        end
      end
    end
  end
end

