-- Release on a hash, if the holder has one hold:
--   an exclusive holder: frees the key, or offers it to the first waiter and publishes the grant
--   the only reader, if a writer is first in the queue: the same
--   one of several readers, if a writer is first in the queue: only leaves
--   one permit of a full semaphore: offers it to the first waiter, if that one wants one permit
-- A waiter behind any of these leaves the queue.
if type(first) ~= 'table' then
  return nil
end
local session, sequence, owner = struct.unpack('<c16dc8', argument)
local name, raw = string.sub(argument, 1, 24), string.sub(argument, 17, 24)
local fields = redis.pcall('HMGET', key, 'head', 'm' .. session)
local known, find_head = fields[2], @FIND_HEAD@
stored = fields[1]
local head, full = find_head(key, stored, now)
if not head then
  return nil
end
local kept, waiting, token, stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end,
  holder_id, _, _, _, holds = struct.unpack('<c45I4dddddddc24dBBc0I4c0', head)
local seen, reason, watermark_end = sequence, @REASON_RELEASED@, now + 2 * @DELIVERY_WINDOW@
if known then
  local highest, highest_end, known_reason = struct.unpack('<ddc1', known)
  if highest_end > now and highest > sequence then
    seen, reason = highest, known_reason
  end
end
local watermark = struct.pack('<ddc1', seen, watermark_end, reason)
-- If a permit is released, its packed holder and its slot.
local permit, slot = nil, 0
if holder_id ~= session .. owner or string.sub(holds, 2) ~= raw then
  if waiting == 0 or holder_id == session .. owner then
    return nil
  end
  local semaphore = string.byte(stored, 4) == @SEMAPHORE@
  local found = redis.call('HMGET', key, 'q' .. name, 'h' .. (semaphore and name or session .. owner))
  local own, holder = found[1], found[2]
  if own then
    local leave_queue = @LEAVE_QUEUE@
    return leave_queue(key, stored, full, own, name, watermark, now)
  elseif not holder then
    return nil
  elseif not semaphore then
    local release_reader = @RELEASE_READER@
    return release_reader(key, stored, session .. owner, holder, raw, watermark, now)
  end
  local old_flags, old_holds, permits, _
  slot, _, old_flags, _, old_holds, _, permits = struct.unpack('<I4dBBc0I4c0dI4', holder)
  if old_flags ~= @OWN_TOKEN@ or #old_holds ~= 9 or permits ~= 1 then
    return nil
  end
  permit = holder
end
if waiting == 0 then
  -- The general part sweeps the watermarks now and then.
  local ticks = string.byte(stored, 25) + 1
  local moved = stored_end < watermark_end
  if moved then
    stored_end = watermark_end + @SLACK@
  end
  if ticks >= @SWEEP_EVERY@ or type(redis.pcall('HSET', key,
    'head', struct.pack('<c24Bc8I4c12ddddddd', kept, ticks, string.sub(kept, 26, 33), 0,
      @NO_COUNTS@, token, stored_end, earliest, next_ticket, 0, 0, waiters_end),
    'm' .. session, watermark)) ~= 'number'
  then
    return nil
  end
  if moved then
    redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
  end
  return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
end
local granted = struct.pack('<c1d', 'w', first_ticket)
local second = struct.pack('<c1d', 'w', first_ticket + 1)
local waiters = redis.call('HMGET', key, granted, second)
local waiter, after, hole, hole_end = waiters[1], waiters[2], false, false
local to, to_raw, to_owner, mode, permits, floor, lease, waiter_end, _, waiter_flags, _, label =
  struct.unpack('<c16c8c8c1I4ddddBBBc0', waiter)
first_ticket = first_ticket + 1
if after and #after == 8 then
  hole, hole_end = after, 'w' .. after
  first_ticket = struct.unpack('<d', after) + 1
  after = redis.call('HGET', key, struct.pack('<c1d', 'w', first_ticket))
end
if waiting > 1 then
  first_end = struct.unpack('<d', after, 54)
else
  first_ticket, first_end, waiters_end = 0, 0, now
end
-- The general part drops an expired waiter.
if mode ~= 'X' and not (permit and permits == 1) or waiter_end <= now or waiter_flags ~= @LISTENING@
  or waiting > 1 and first_end <= now
then
  return nil
end
local channel = @CHANNEL@
if not (@LISTENS@) then
  return nil -- the general part marks an unreachable waiter
end
if not full then
  -- A writer follows the last reader.
  kept = string.sub(kept, 1, 33) .. string.sub(kept, 5, 8) .. string.sub(kept, 38)
end
local find_offer_end = @OFFER_END@
local offer_end = find_offer_end(now, lease, waiter_end, struct.unpack('<d', stored, 9))
token = math.max(token + 1, now, floor + 1)
local needed_end = math.max(watermark_end, offer_end + @RETENTION@)
local moved = stored_end < needed_end
if moved then
  stored_end = needed_end + @SLACK@
end
local ticket_field, written = 'q' .. to .. to_raw, nil
if hole then
  written = redis.pcall('HDEL', key, granted, ticket_field, second, hole_end)
else
  written = redis.pcall('HDEL', key, granted, ticket_field)
end
if type(written) ~= 'number' then
  return nil
end
if permit then
  redis.call('HDEL', key, 'h' .. name)
  redis.call('HSET', key,
    'head', struct.pack('<c45I4ddddddd', kept, waiting - 1, token, stored_end,
      math.min(earliest, offer_end), next_ticket, first_ticket, first_end, waiters_end),
    'h' .. to .. to_raw, struct.pack('<I4dBBc0I4c1c8dI4', slot, offer_end, @OWN_TOKEN@,
      #label, label, 9, 'P', to_raw, token, 1),
    string.format('s%.0f', slot), to .. to_raw,
    'm' .. session, watermark)
else
  redis.call('HSET', key,
    'head', struct.pack('<c45I4dddddddc16c8dBBc0I4c1c8', kept, waiting - 1, token,
      stored_end, offer_end, next_ticket, first_ticket, first_end, waiters_end, to,
      to_owner, offer_end, 0, #label, label, 9, 'X', to_raw),
    'm' .. session, watermark)
end
if moved then
  redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
end
-- After all writes: a message that has left can't be taken back.
redis.pcall(@PUBLISH@, channel,
  struct.pack('<dc8c1c8dd', now, clock_id, 'G', to_raw, token, offer_end - now))
return struct.pack('<c1dc1I4', @DONE@, now, 'R', 0)
