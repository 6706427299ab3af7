-- The general part. A script takes one key and one argument for each element of a batch. It answers
-- with one string: for each element a status, the time and the packed reply. Each element loads,
-- decides and writes separately. All elements see the same time.
--
-- Storage
--   string    A lock without waiters is one packed string: a head, the holders, and the watermarks (the
--             highest sequence of each session).
--   hash      A lock with waiters, with a note, or with more than @PACKED_RECORDS@ records (@FEW_RECORDS@ if no
--             fast path serves it) is a hash. The fields are `head` (with the holder, if there is only one),
--             `h`HOLDER_ID (one of several holders), `s`SLOT (the holder id in a slot, to list all
--             holders), `w`TICKET (a waiter), `q`SESSION SEQUENCE (the ticket of a waiter), `m`SESSION (a
--             watermark) and `n` (the note). Where waiters have left the middle of the queue, their
--             tickets are a hole: the fields `w` of its first and its last ticket name each other, so
--             the next waiter is never far. A step reads and writes a few fields, however long the
--             queue is.
--   changes   Only acquire and note turn a string into a hash (and a release that adds watermark
--             @MOST_RECORDS@), because this needs memory, and can't be done while the slot of the key
--             migrates. Only an acquire turns a hash into a string, once nobody has waited for 2 W.
--   note      The head of a hash with a note begins with another format version, so no fast path serves
--             it, and earlier releases refuse it.
--
-- Positions in these strings, from 1 (SETRANGE counts from 0). The fast path uses them as numbers.
--   string    1 format version, 4 kind, 5 capacity, 9 waiter lease, 17 token, 25 stored end, 33 earliest,
--             41 last scan; the fixed place of a hold, and of its session's watermark: 49 session,
--             65 sequence, 73 owner (of permits: the sequence), 81 mode, 82 permits, 86 end, 94 flags,
--             95 whether there is a hold, 96 other holders, 97 other watermarks (two bytes), 99 highest
--             sequence, 107 end of the watermark, 115 reason, 116 label; then the other holders and
--             watermarks. What a release changes is side by side, so it is one SETRANGE.
--   `head`    1 to 16 as in a string, 17 last scan, 25 ticks, 26 cursor, 34 used capacity, 38 holders,
--             42 unreachable waiters, 46 waiters, 50 token, 58 stored end, 66 earliest, 74 next ticket,
--             82 first ticket, 90 a lower bound of the first waiter's end, 98 the waiters' earliest end
--             (if nobody waits, when the last one was gone), 106 the holder
--   holder    1 session, 17 owner (of permits: the sequence), 25 end, 33 flags, 34 label, then holds of
--             9 bytes; in `h`, the slot stands in place of session and owner
--   waiter    1 session, 17 sequence, 25 owner, 33 mode, 34 permits, 38 floor, 46 lease, 54 end,
--             62 wait-until, 70 flags, 71 marks, 72 label
--   watermark 1 session, 17 sequence, 25 end, 33 reason; in `m`, without the session
--   argument  1 session, 17 sequence, 25 owner, if the command names an operation
--
-- The logic is the same for both forms. It sees fields: field() reads one, put() changes one. A string is
-- unpacked into the fields that a hash would have, and flush() writes the changes.
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
--   A second table has the methods for waiters and hashes, and a third those for rare events. A
--   metatable creates each of these tables at the first call of one of its methods. Reading a nil
--   field of S would do so too, so fields are never nil: `false` means none.
--   expand() in source.rs replaces each name between at signs by a constant or a function.

local S = {
  now = now, clock_id = clock_id,
  packed_records = @PACKED_RECORDS@,
  -- Whether the command is an acquire: it must fail if the server is out of memory, and may change the form.
  acquires = false,
  -- The answer to GET, if it has been called.
  prefetched = first ~= nil, first = first or false,
  try = try, answers = answers, done = done,
  -- Whether the argument begins with an operation.
  names_operation = true,
  -- The current element of the batch, and its operation.
  key = false, argument = false,
  session = false, sequence = 0, raw_sequence = false, owner = false,
  -- The stored form ('string', 'hash' or false), and the stored string or head of the hash.
  -- `old_hash`: the key has a hash, and its next form is another one.
  form = false, stored = false, old_hash = false,
  -- The fields read so far and those changed. A field that is `false` is known not to exist.
  -- `complete`: the other fields don't exist.
  fields = false, changed = false, complete = false,
  -- Whether this step has written, has changes to write, or has moved the stored end.
  wrote = false, dirty = false, moved = false,
  -- The head. `stored_holders` is the number of holders in the stored hash, 0 for a string.
  spec = false, kind = 0, capacity = 0, waiter_lease = 0,
  token = 0, stored_end = 0, earliest = 0, last_scan = 0, ticks = 0, cursor = 0,
  used = 0, holder_count = 0, stored_holders = 0,
  waiter_count = 0, unreachable = 0, next_ticket = 1,
  first_ticket = @NONE@, first_end = 0, waiters_end = 0,
  note = false,
  -- The id of the holder in the fixed place of the stored string, and the holder that was parsed last.
  fixed = false, known = false,
  -- Messages to publish by session, whether a session listens, and whether a waiter has arrived.
  pending = false, reach = false, arrived = false,

  set_spec = function(S, bytes)
    S.spec = bytes
    S.kind, S.capacity, S.waiter_lease = struct.unpack('<BI4d', bytes)
  end,

  field = function(S, name)
    local value = S.fields[name]
    if value == nil and not S.complete then
      value = redis.call('HGET', S.key, name)
      S.fields[name] = value
    end
    return value
  end,

  -- Changes a field. `false` removes it.
  put = function(S, name, value)
    S.fields[name], S.changed[name], S.dirty = value, true, true
  end,

  -- The mode of a holder with these holds. Each hold is one byte for the mode, then the raw sequence.
  mode_of = function(S, holds)
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

  load = function(S)
    S.form, S.stored, S.old_hash = false, false, false
    S.fields, S.changed, S.complete = {}, {}, true
    S.wrote, S.dirty, S.moved = false, false, false
    S.spec, S.kind, S.capacity, S.waiter_lease = @NO_SPEC@, 0, 0, 0
    S.token, S.stored_end, S.earliest, S.last_scan, S.ticks, S.cursor = 0, 0, 0, 0, 0, 0
    S.used, S.holder_count, S.stored_holders = 0, 0, 0
    S.waiter_count, S.unreachable, S.next_ticket = 0, 0, 1
    S.first_ticket, S.first_end, S.waiters_end = @NONE@, 0, 0
    S.note, S.pending, S.reach, S.arrived = false, false, false, false
    S.fixed, S.known = false, false
    local stored
    if S.prefetched then
      stored, S.prefetched = S.first, false
    else
      stored = redis.pcall('GET', S.key)
    end
    if type(stored) == 'table' then
      S:load_hash(stored.err)
    elseif stored then
      S.stored = stored
      S:load_string(stored)
    end
  end,

  load_string = function(S, stored)
    if string.sub(stored, 1, 3) ~= @MAGIC@ or #stored < @SHORTEST@ then
      S:refuse_foreign(stored, 'string')
    end
    local _, spec, token, stored_end, earliest, last_scan, session, raw, owner, mode, permits, ends, flags,
      held, holders, watermarks, watermark, label, at =
      struct.unpack('<c3c13ddddc16c8c8c1I4dBBBHc17Bc0', stored)
    if stored_end <= S.now then
      return -- past its stored end: counts as empty, and will be overwritten
    end
    S:set_spec(spec)
    S.form, S.token, S.stored_end, S.earliest, S.last_scan = 'string', token, stored_end, earliest, last_scan
    S.fields['m' .. session], S.holder_count = watermark, held + holders
    if held > 0 then
      local bytes = struct.pack('<I4dBBc0I4c1c8', 0, ends, flags, #label, label, 9, mode, raw)
      if flags >= @OWN_TOKEN@ then
        bytes = bytes .. struct.pack('<dI4', token, permits)
      end
      S.fixed = session .. owner
      S.fields['h' .. S.fixed], S.used = bytes, S:weight(mode, permits)
    end
    for _ = 1, holders do
      local from, holder_id, _, own_flags, holds = at, nil, nil, nil, nil
      holder_id, _, own_flags, _, holds, at = struct.unpack('<c24dBBc0I4c0', stored, at)
      if own_flags >= @OWN_TOKEN@ then
        _, permits, at = struct.unpack('<dI4', stored, at)
      end
      S.fields['h' .. holder_id] = '\0\0\0\0' .. string.sub(stored, from + 24, at - 1)
      S.used = S.used + S:weight(S:mode_of(holds), permits)
    end
    for _ = 1, watermarks do
      session, watermark, at = struct.unpack('<c16c17', stored, at)
      S.fields['m' .. session] = watermark
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

  flush = function(S)
    if S.note and not S:standing_note() then
      S.note = false
      S:put('n', false)
    end
    if S.form ~= 'hash' or S.acquires and S:becomes_string() then
      S:flush_string()
    else
      S:flush_hash()
    end
  end,

  -- Whether this holder may be in the fixed place of a string: it has one hold, and its token is the key's.
  may_be_fixed = function(S, holder_id)
    local bytes = holder_id and S.fields['h' .. holder_id]
    if not bytes then
      return false
    end
    local _, _, flags, _, holds, at = struct.unpack('<I4dBBc0I4c0', bytes)
    return #holds == 9 and (flags < @OWN_TOKEN@ or struct.unpack('<d', bytes, at) == S.token)
  end,

  flush_string = function(S)
    -- The operation's holder, or else the one that was there.
    local fixed = S.session and S:holder_id()
    if not S:may_be_fixed(fixed) then
      fixed = S:may_be_fixed(S.fixed) and S.fixed
    end
    local session = fixed and string.sub(fixed, 1, 16) or S.session or @NO_SESSION@
    local own, holders, watermarks = @NO_WATERMARK@, {}, {}
    for name, value in pairs(S.fields) do
      local kind, id = value and string.byte(name), string.sub(name, 2)
      if kind == @HOLDER@ and id ~= fixed then
        holders[#holders + 1] = id .. string.sub(value, 5)
      elseif kind == @WATERMARK@ and struct.unpack('<d', value, 9) > S.now then
        if id == session then
          own = value
        else
          watermarks[#watermarks + 1] = id .. value
        end
      end
    end
    local most = (S.holder_count > 1 or S.kind == @SEMAPHORE@) and @FEW_RECORDS@ or @PACKED_RECORDS@
    most = S.acquires and math.min(most, S.packed_records) or @MOST_RECORDS@
    local count, added = S.holder_count + #watermarks, true
    if S.form == 'string' and not S.acquires then
      local stored_held, stored_holders, stored_watermarks, _, stored_end = struct.unpack('<BBHdd', S.stored, 95)
      added = count + (own == @NO_WATERMARK@ and 0 or 1)
        > stored_held + stored_holders + stored_watermarks + (stored_end > 0 and 1 or 0)
    end
    -- Of the other commands, only one that adds a record may change the form.
    if S.waiter_count > 0 or S.note or count + 1 > most and added then
      return S:become_hash()
    end
    local held, holder = 0, false
    if fixed then
      held, holder = 1, S:holder_of(fixed)
    else
      fixed, holder = @NO_HOLDER_ID@, { holds = @NO_HOLD@, ends = 0, flags = 0, label = '' }
    end
    local value = struct.pack('<c3c13ddddc16c8c8c1I4dBBBHc17Bc0', @MAGIC@, S.spec, S.token, S.stored_end,
      S.earliest, S.last_scan, session, string.sub(holder.holds, 2), string.sub(fixed, 17), holder.holds,
      holder.permits or 0, holder.ends, holder.flags, held, #holders, #watermarks, own, #holder.label,
      holder.label) .. table.concat(holders) .. table.concat(watermarks)
    if S.form == 'string' and not S.moved then
      S:write('SET', S.key, value, 'KEEPTTL')
    else
      -- It replaces a hash too. That must not be deleted first: see become_hash().
      -- The time is expire_at(), without creating its table of methods.
      S:write('SET', S.key, value, 'PXAT', math.ceil(S.stored_end / 1000) + @DELETED_AFTER_MS@)
    end
  end,

  cover = function(S, needed_end)
    S.dirty = true
    if S.stored_end < needed_end then
      S.stored_end = needed_end + @SLACK@
      S.moved = true
    end
  end,

  -- A table of the holder, or nil. After a change, call put_holder().
  holder_of = function(S, holder_id)
    local bytes = S.fields['h' .. holder_id]
    if bytes == nil and S.stored_holders > 1 then
      bytes = S:field('h' .. holder_id)
    end
    if not bytes then
      return nil
    end
    if S.known and S.known.bytes == bytes and S.known.id == holder_id then
      return S.known
    end
    local slot, ends, flags, label, holds, at = struct.unpack('<I4dBBc0I4c0', bytes)
    local token, permits
    if flags >= @OWN_TOKEN@ then
      token, permits = struct.unpack('<dI4', bytes, at)
    end
    S.known = {
      id = holder_id, slot = slot, ends = ends, flags = flags, label = label, holds = holds,
      token = token, permits = permits, bytes = bytes,
    }
    return S.known
  end,

  put_holder = function(S, holder)
    local label, holds = holder.label, holder.holds
    local bytes = struct.pack('<I4dBBc0I4c0', holder.slot, holder.ends, holder.flags, #label, label,
      #holds, holds)
    if holder.flags >= @OWN_TOKEN@ then
      bytes = bytes .. struct.pack('<dI4', holder.token, holder.permits)
    end
    holder.bytes, S.known = bytes, holder
    S:put('h' .. holder.id, bytes)
  end,

  remove_holder = function(S, holder)
    S.used = S.used - S:weight(S:mode_of(holder.holds), holder.permits)
    if not S.complete then
      S:remove_slot(holder.slot)
    end
    S:put('h' .. holder.id, false)
    S.holder_count = S.holder_count - 1
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

  -- Sequence, end and reason of a watermark that hasn't expired, or nil.
  watermark_of = function(S, session)
    local bytes = S:field('m' .. session)
    if bytes then
      local sequence, ends, reason = struct.unpack('<ddc1', bytes)
      if ends > S.now then
        return sequence, ends, reason
      end
    end
  end,

  -- Raises the session's watermark to this sequence and extends it by 2 W (rule 12). `reason` says
  -- why the operation is gone, if it is.
  raise_watermark = function(S, reason)
    local sequence, _, known = S:watermark_of(S.session)
    if not sequence or S.sequence > sequence then
      sequence = S.sequence
    elseif S.sequence < sequence or reason == @REASON_NONE@ then
      reason = known
    end
    local ends = S.now + 2 * @DELIVERY_WINDOW@
    S:put('m' .. S.session, struct.pack('<ddc1', sequence, ends, reason))
    S:cover(ends)
  end,

  -- Drops the owner's holder and the operation's waiter if they have expired. Returns whether the
  -- operation itself had expired.
  drop_if_expired = function(S)
    local own, holder = false, S:holder_of(S:holder_id())
    if holder and holder.ends <= S.now then
      own = S:hold_at(holder, S.raw_sequence) ~= nil
      S:remove_holder(holder)
    end
    local waiter = S.waiter_count > 0 and S:own_waiter()
    if waiter and waiter.ends <= S.now then
      S:remove_waiter(waiter)
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

  grant = function(S, to_session, raw, to_owner, mode, permits, label, floor, ends)
    local holder_id = to_session .. (S.kind == @SEMAPHORE@ and raw or to_owner)
    S:cover(ends + @RETENTION@)
    local holder = S:holder_of(holder_id)
    if holder and holder.ends <= S.now then
      -- With many holders, the last scan may be older than this expiry. The grant must not revive
      -- the expired holder.
      S:remove_holder(holder)
      holder = nil
    end
    if holder then
      -- A queued read of an owner that already has a read hold.
      holder.holds = holder.holds .. mode .. raw
      if holder.flags % 2 ~= @REVOKED@ then
        holder.ends = math.max(holder.ends, ends)
      end
      S:put_holder(holder)
      return holder
    end
    -- Whether it joins the epoch of other holders. A floor above the stored token proves that a token was
    -- lost, so a new epoch starts. A floor equal to the token comes from a client that has read in this
    -- epoch. A new epoch would then make resources refuse the current readers.
    local joins = S.kind == @RW_LOCK@ and mode == 'S' and S.holder_count > 0 and floor <= S.token
    if not joins then
      S.token = math.max(S.token + 1, S.now, floor + 1)
    end
    if S.holder_count == 0 or ends < S.earliest then
      S.earliest = ends
    end
    S.used = S.used + S:weight(mode, permits)
    S.holder_count = S.holder_count + 1
    local slot, flags, token = S.complete and 0 or S.holder_count, 0, nil
    if S.kind == @SEMAPHORE@ then
      flags, token = @OWN_TOKEN@, S.token
    end
    holder = {
      id = holder_id, slot = slot, ends = ends, flags = flags, label = label, holds = mode .. raw,
      token = token, permits = permits,
    }
    S:put_holder(holder)
    if not S.complete then
      S:put(string.format('s%.0f', slot), holder_id)
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
    local waiter = S.waiter_count > 0 and S:own_waiter()
    if waiter and waiter.ends > S.now then
      return S:queued(waiter)
    end
  end,

  step = function(S, command)
    if S.names_operation then
      S.session, S.sequence, S.owner = struct.unpack('<c16dc8', S.argument)
      S.raw_sequence = string.sub(S.argument, 17, 24)
    end
    S:load()
    local answer = command(S)
    if S.dirty then
      S:flush()
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
}
