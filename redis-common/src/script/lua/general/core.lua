-- The general part. A script takes one key and one argument for each element of a batch. It answers
-- with one string: for each element a status, the time and the packed reply. Each element loads,
-- decides and writes separately. All elements see the same time.
--
-- Storage
--   packed    A small state is one packed string: a head, the holders, the watermarks (the highest
--             sequence of each session), the waiters, and the next ticket if there are waiters. The
--             general part reads and writes the whole string. The fast path may leave a gap before
--             the waiters.
--   hash      A state with more than @PACKED_RECORDS@ records is a hash. The limit is
--             @QUEUE_RECORDS@ with waiters, and @FEW_RECORDS@ if no fast path serves the lock. With
--             more than one waiter (@SHARED_WAITERS@) behind permits or readers, the state is a hash too,
--             because the fast path serves such a queue only there. The fields are `head` (with the
--             holder, if there is only one), `h`HOLDER_ID (one of several holders), `s`SLOT (the
--             holder id in a slot, to list all holders), `w`TICKET (a waiter), `q`SESSION SEQUENCE
--             (the ticket of a waiter) and `m`SESSION (a watermark). Where waiters have left the
--             middle of the queue, their tickets are a hole: the fields `w` of its first and its last
--             ticket name each other, so the next waiter is never far. A step reads and writes a few
--             fields, however long the queue is. A small hash without waiters becomes a string again.
--   note      A state with a note is a hash, whatever its size. The field `n` has the note. The head begins
--             with another format version, so no fast path serves it, and earlier releases refuse it.
--
-- Positions in these strings, from 1 (SETRANGE counts from 0). The fast path uses them as numbers.
--   string    1 format version, 4 kind, 5 capacity, 9 waiter lease, 17 token, 25 stored end, 33 earliest,
--             41 last scan, 49 holders, 50 waiters, 51 watermarks, 52 length of the gap,
--             54 the first holder
--   `head`    1 to 16 as in a string, 17 last scan, 25 ticks, 26 cursor, 34 used capacity, 38 holders,
--             42 unreachable waiters, 46 waiters, 50 token, 58 stored end, 66 earliest, 74 next ticket,
--             82 first ticket, 90 end of the first waiter, 98 the waiters' earliest end, 106 the holder
--   holder    1 session, 17 owner (of permits: the sequence), 25 end, 33 flags, 34 label, then holds of
--             9 bytes; in `h`, the slot stands in place of session and owner
--   waiter    1 session, 17 sequence, 25 owner, 33 mode, 34 permits, 38 floor, 46 lease, 54 end,
--             62 wait-until, 70 flags, 71 marks, 72 label
--   watermark 1 session, 17 sequence, 25 end, 33 reason; in `m`, without the session
--   argument  1 session, 17 sequence, 25 owner, if the command names an operation
--
-- The logic is the same for both forms. holder_of(), waiter_at() and watermark_of() load records on
-- demand, and step() writes the changes.
--
-- Writing
--   A step decides everything before it writes (rule 13), and publishes after all writes. A message
--   may reach listeners that PUBLISH does not count, such as those of a replica, and nothing takes it
--   back. So no step publishes a change that it hasn't written. If the first write fails, the reply
--   is the server's error and means "not executed". An error after the first write means "outcome
--   unknown".
--
-- Numbers
--   Every time, token, ticket and sequence is a double that holds an integer below 2^53. `raw` is a
--   sequence as it is packed: 8 bytes, compared as text.
--
-- Times
--   A holder, a waiter and a watermark expire when their time `ends` has come. (The state machine
--   says `end`, which is a keyword here. Variables are called `holder_end` and so on.) `wait_until`
--   is a waiter's own deadline. `stored_end` is the end of the whole state, and Redis expires the
--   key a little later, at expire_at().
--
-- Style
--   Each call of a script creates its functions again. A function gets more expensive with each
--   outer variable that it uses: with four it costs three to four times as much as with none. So
--   functions use none. The state of a step is in the table S, and every function is a method of S.
--   A second table has the methods for waiters, and a third those for hashes and rare events. A
--   metatable creates each of these tables at the first call of one of its methods. Reading a nil
--   field of S would do so too, so fields are never nil: `false` means none.
--   expand() in source.rs replaces each name between at signs by a constant, or by text that several scripts
--   share.

local S = {
  now = now,
  packed_records = @PACKED_RECORDS@, queue_records = @QUEUE_RECORDS@,
  shared_waiters = @SHARED_WAITERS@,
  strict = false, -- whether the command must fail if the server is out of memory
  -- The answer to GET, if the fast path has called it.
  prefetched = first ~= nil, first = first or false,
  try = try, answers = answers, done = done, clock_id = clock_id,
  -- The current element of the batch, and its operation if the command has one.
  key = false, argument = false,
  session = false, sequence = 0, raw_sequence = false, owner = false,
  -- The stored form ('packed', 'hash' or false), and the stored string or head of the hash.
  -- `old_hash`: the key has a hash, and its next form is another one. It is deleted first, unless it counts.
  form = false, stored = false, old_hash = false,
  -- Whether this step has written, has changes to write, has moved the stored end, or has removed a
  -- holder or waiter.
  wrote = false, dirty = false, moved = false, shrunk = false,
  -- The state: holders by holder id, watermarks by session, and the queue. An entry that is `false`
  -- is known not to be in the hash.
  spec = false, kind = 0, capacity = 0, waiter_lease = 0,
  token = 0, stored_end = 0, earliest = 0, last_scan = 0,
  used = 0, holder_count = 0, waiter_count = 0,
  holders = false, watermarks = false, waiters = false,
  -- Messages to publish by session, and whether a session listens.
  pending = false, reach = false,
  -- For a hash: holder ids by slot, changed slots, removed records, the state of the sweep, and the
  -- number of holders in the stored hash.
  slots = false, fresh_slots = false, gone_holders = false,
  ticks = 0, cursor = 0,
  stored_holders = 0,

  set_spec = function(S, bytes)
    S.spec = bytes
    S.kind, S.capacity, S.waiter_lease = struct.unpack('<BI4d', bytes)
  end,

  mode_of = function(S, holder)
    -- Each hold is one byte for the mode, then the raw sequence.
    local holds = holder.holds
    for at = 1, #holds, 9 do
      if string.byte(holds, at) == @EXCLUSIVE@ then
        return 'X'
      end
    end
    return string.sub(holds, 1, 1)
  end,

  hold_at = function(S, holder, raw)
    local holds = holder.holds
    for at = 1, #holds, 9 do
      if string.sub(holds, at + 1, at + 8) == raw then
        return at
      end
    end
  end,

  weight = function(S, mode, permits)
    return mode == 'X' and S.capacity or mode == 'S' and 1 or permits
  end,

  token_of = function(S, holder)
    return S.kind == @SEMAPHORE@ and holder.token or S.token
  end,

  fits = function(S, mode, permits)
    return S:weight(mode, permits) <= S.capacity - S.used
  end,

  -- Reads a holder at position `at`; returns the next position too.
  read_holder = function(S, from, at)
    local ends, flags, label, holds
    ends, flags, label, holds, at = struct.unpack('<dBBc0I4c0', from, at)
    local holder = { ends = ends, flags = flags, label = label, holds = holds }
    if flags >= @OWN_TOKEN@ then
      holder.token, holder.permits, at = struct.unpack('<dI4', from, at)
    end
    return holder, at
  end,

  write_holder = function(S, holder)
    local label, holds = holder.label, holder.holds
    local out = struct.pack('<dBBc0I4c0', holder.ends, holder.flags, #label, label, #holds, holds)
    if holder.flags >= @OWN_TOKEN@ then
      out = out .. struct.pack('<dI4', holder.token, holder.permits)
    end
    return out
  end,

  load = function(S)
    S.form, S.wrote, S.dirty, S.moved, S.shrunk = false, false, false, false, false
    S.old_hash, S.waiters, S.pending, S.reach, S.note = false, false, false, false, false
    S.spec, S.kind, S.capacity, S.waiter_lease = @NO_SPEC@, 0, 0, 0
    S.token, S.stored_end, S.earliest, S.last_scan = 0, 0, 0, 0
    S.used, S.holder_count, S.waiter_count, S.holders, S.watermarks = 0, 0, 0, {}, {}
    local stored
    if S.prefetched then
      stored, S.prefetched = S.first, false
    else
      stored = redis.pcall('GET', S.key)
    end
    S.stored = stored
    if not stored then
      return
    end
    if type(stored) == 'table' then
      return S:load_hash(stored.err)
    end
    if string.sub(stored, 1, 3) ~= @MAGIC@ or #stored < 53 then
      S:refuse_foreign(stored, 'string')
    end
    local _, spec, token, stored_end, earliest, last_scan, holders, waiting, watermarks, skip, at =
      struct.unpack('<c3c13ddddBBBH', stored)
    if stored_end <= S.now then
      return -- past its stored end: counts as empty, and will be overwritten
    end
    S:set_spec(spec)
    S.form, S.token, S.stored_end = 'packed', token, stored_end
    S.earliest, S.last_scan = earliest, last_scan
    for _ = 1, holders do
      local holder_id, holder = string.sub(stored, at, at + 23), nil
      holder, at = S:read_holder(stored, at + 24)
      S.holders[holder_id] = holder
      S.used = S.used + S:weight(S:mode_of(holder), holder.permits)
    end
    S.holder_count = holders
    for _ = 1, watermarks do
      local session, sequence, ends, reason
      session, sequence, ends, reason, at = struct.unpack('<c16ddc1', stored, at)
      if ends > S.now then
        S.watermarks[session] = { sequence = sequence, ends = ends, reason = reason }
      end
    end
    if waiting > 0 then
      S:unpack_waiters(waiting, at + skip)
    end
  end,

  -- Makes all writes of the general part.
  write = function(S, ...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
      S:write_again(answer, ...)
    end
    S.wrote = true
  end,

  flush_packed = function(S)
    local out, watermarks, n = {}, 0, 1
    for holder_id, holder in pairs(S.holders) do
      if holder then
        n = n + 1
        out[n] = holder_id .. S:write_holder(holder)
      end
    end
    for session, watermark in pairs(S.watermarks) do
      if watermark and watermark.ends > S.now then
        n, watermarks = n + 1, watermarks + 1
        out[n] = struct.pack('<c16ddc1', session, watermark.sequence, watermark.ends,
          watermark.reason)
      end
    end
    local records = S.holder_count + S.waiter_count + watermarks
    local most = S.waiter_count > 0 and S.queue_records or S.packed_records
    if records > most or S.note or records > @FEW_RECORDS@
      and (S.holder_count > 1 or S.kind == @SEMAPHORE@)
      or S.waiter_count > S.shared_waiters and (S.kind == @SEMAPHORE@ or S.used > 0 and S.used < S.capacity)
    then
      return S:become_hash()
    end
    if S.waiter_count > 0 then
      n = n + 1
      out[n] = S:pack_waiters()
    end
    out[1] = struct.pack('<c3c13ddddBBBH', @MAGIC@, S.spec, S.token, S.stored_end, S.earliest,
      S.last_scan, S.holder_count, S.waiter_count, watermarks, 0)
    -- SET replaces a hash that counts. It must not be deleted first: see become_hash().
    if S.old_hash and S.form ~= 'hash' then
      S:delete_key()
    end
    if S.form == 'packed' and not S.moved then
      S:write('SET', S.key, table.concat(out), 'KEEPTTL')
    else
      -- The same as expire_at(), without creating its table of methods.
      S:write('SET', S.key, table.concat(out), 'PXAT', math.ceil(S.stored_end / 1000) + @DELETED_AFTER_MS@)
    end
  end,

  cover = function(S, needed_end)
    if S.stored_end < needed_end then
      S.stored_end = needed_end + @SLACK@
      S.moved = true
    end
  end,

  holder_of = function(S, holder_id)
    local holder = S.holders[holder_id]
    if holder == nil and S.form == 'hash' then
      local bytes = redis.call('HGET', S.key, 'h' .. holder_id)
      holder = bytes and S:parse_holder(bytes)
      S.holders[holder_id] = holder
    end
    return holder
  end,

  -- The holder id of the operation: (session, owner), or (session, sequence) for a semaphore.
  holder_id = function(S)
    return S.session .. (S.kind == @SEMAPHORE@ and S.raw_sequence or S.owner)
  end,

  live = function(S)
    local holder = S:holder_of(S:holder_id())
    if holder and holder.ends > S.now and S:hold_at(holder, S.raw_sequence) then
      return holder
    end
  end,

  watermark_of = function(S, session)
    local watermark = S.watermarks[session]
    if watermark == nil and S.form == 'hash' then
      local bytes = redis.call('HGET', S.key, 'm' .. session)
      watermark = bytes and S:parse_watermark(bytes)
      S.watermarks[session] = watermark
    end
    if watermark and watermark.ends > S.now then
      return watermark
    end
  end,

  -- Raises the session's watermark to this sequence and extends it by 2 W (rule 12). `reason` says
  -- why the operation is gone, if it is.
  raise_watermark = function(S, reason)
    local ends = S.now + 2 * @DELIVERY_WINDOW@
    local watermark = S:watermark_of(S.session)
    if not watermark or S.sequence > watermark.sequence then
      S.watermarks[S.session] = {
        sequence = S.sequence, ends = ends, reason = reason, fresh = true,
      }
    else
      if S.sequence == watermark.sequence and reason ~= @REASON_NONE@ then
        watermark.reason = reason
      end
      watermark.ends, watermark.fresh = ends, true
    end
    S.dirty = true
    S:cover(ends)
  end,

  remove_holder = function(S, holder_id, holder)
    S.used = S.used - S:weight(S:mode_of(holder), holder.permits)
    S.dirty, S.shrunk = true, true
    if S.form == 'hash' then
      S:remove_slot(holder_id, holder)
      S.holders[holder_id] = false
    else
      S.holders[holder_id] = nil
    end
    S.holder_count = S.holder_count - 1
  end,

  -- Drops the owner's holder and the operation's waiter if they have expired. Returns whether the
  -- operation itself had expired.
  drop_if_expired = function(S)
    local own = false
    local holder_id = S:holder_id()
    local holder = S:holder_of(holder_id)
    if holder and holder.ends <= S.now then
      own = S:hold_at(holder, S.raw_sequence) ~= nil
      S:remove_holder(holder_id, holder)
    end
    if S.waiter_count > 0 and S:drop_expired_waiter() then
      own = true
    end
    return own
  end,

  -- Drops expired holders if `needed`, then grants to the queue. With `own`, a grant to this
  -- operation is not published, because the reply carries it.
  settle = function(S, needed, own)
    if needed and S.holder_count > 0 and S.now >= S.earliest then
      S:scan()
    end
    if S.waiter_count > 0 then
      S:grant_in_order(own)
    end
  end,

  token_after = function(S, floor)
    return math.max(S.token + 1, S.now, floor + 1)
  end,

  grant = function(S, to_session, raw, to_owner, mode, permits, label, floor, ends)
    local holder_id = to_session .. (S.kind == @SEMAPHORE@ and raw or to_owner)
    S.dirty = true
    S:cover(ends + @RETENTION@)
    local holder = S:holder_of(holder_id)
    if holder and holder.ends <= S.now then
      -- With many holders, the last scan may be older than this expiry. The grant must not revive
      -- the expired holder.
      S:remove_holder(holder_id, holder)
      holder = nil
    end
    if holder then
      -- A queued read of an owner that already has a read hold.
      holder.holds = holder.holds .. mode .. raw
      if holder.flags % 2 ~= @REVOKED@ then
        holder.ends = math.max(holder.ends, ends)
      end
      holder.fresh = true
      return holder
    end
    -- Whether it joins the epoch of other holders. A floor above the stored token proves that a token was
    -- lost, so a new epoch starts. A floor equal to the token comes from a client that has read in this
    -- epoch. A new epoch would then make resources refuse the current readers.
    local joins = S.kind == @RW_LOCK@ and mode == 'S' and S.holder_count > 0 and floor <= S.token
    if not joins then
      S.token = S:token_after(floor)
    end
    if S.holder_count == 0 or ends < S.earliest then
      S.earliest = ends
    end
    S.used = S.used + S:weight(mode, permits)
    S.holder_count = S.holder_count + 1
    holder = { ends = ends, flags = 0, label = label, holds = mode .. raw, fresh = true }
    if S.kind == @SEMAPHORE@ then
      holder.flags, holder.token, holder.permits = @OWN_TOKEN@, S.token, permits
    end
    S.holders[holder_id] = holder
    if S.form == 'hash' then
      S:add_slot(holder_id, holder)
    end
    return holder
  end,

  acquired = function(S, holder)
    return 'A' .. struct.pack('<dI4d', S:token_of(holder), #holder.holds / 9, holder.ends - S.now)
  end,

  -- The reply for an operation that is already live; nil if it isn't.
  report = function(S)
    local holder = S:live()
    if holder then
      return S:acquired(holder)
    end
    if S.waiter_count > 0 then
      local ticket, waiter = S:own_waiter()
      if ticket and waiter.ends > S.now then
        return S:queued(ticket, waiter)
      end
    end
  end,

  step = function(S, command)
    S:load()
    local answer = command(S)
    if S.dirty then
      if S.form == 'hash' then
        S:flush_hash()
      else
        S:flush_packed()
      end
      if S.pending then
        for to, body in pairs(S.pending) do
          S:publish(to, body)
        end
      end
    else
      S:refuse_on_replica()
    end
    return answer
  end,

  -- Runs `command` for each element that has no answer yet.
  serve = function(S, command)
    local stamp, out, done = struct.pack('<d', S.now), S.answers or {}, S.done
    for i = done + 1, #KEYS do
      local answer, ok = i > done + 1 and S.try(i), true
      if answer then
        out[i] = answer
      else
        S.key, S.argument = KEYS[i], ARGV[i]
        ok, answer = pcall(S.step, S, command)
        out[i] = ok and @DONE@ .. stamp .. answer or S:problem(answer)
        if type(out[i]) == 'table' then
          return out[i]
        end
      end
    end
    return table.concat(out)
  end,

  -- Reads the operation from the argument.
  set_operation = function(S)
    S.session, S.sequence, S.owner = struct.unpack('<c16dc8', S.argument)
    S.raw_sequence = string.sub(S.argument, 17, 24)
  end,
}
