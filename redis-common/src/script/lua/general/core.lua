-- The general part. A script takes one key and one argument for each element of a batch. It answers
-- with one string: for each element a status, the time and the packed reply. Each element loads,
-- decides and writes separately; all elements see the same time.
--
-- Where a key's state lives
--   packed    A small state is one packed string: a head, then the holders, watermarks and places one
--             behind the other, then the next ticket if somebody waits. The general part reads and
--             writes all of it; the fast path may leave a gap before the places.
--   hash      With more records than @PACKED_RECORDS@, or than @FEW_RECORDS@ if no fast path serves
--             the lock, it is a hash with these fields: `head`, `h`HOLDER (a holder), `s`SLOT (the
--             holder in a slot, to list all of them), `p`TICKET (a place; places form a linked
--             list), `q`SESSION SEQUENCE (a ticket), `m`SESSION (a watermark). Fields are read and
--             written one by one. A hash that is nearly empty becomes a string again.
-- The logic depends on neither form: holder_of(), place_at(), watermark_of() and the like load what is
-- missing, and step() writes what has changed.
--
-- Writing
--   A step decides everything before it writes. There is one exception: a grant depends on the
--   answer of PUBLISH, and a step must not publish what it can't write, so it first makes a write
--   that changes nothing. The error of the first write is the server's and means "not executed";
--   an error after it means "outcome unknown".
--
-- Numbers
--   Every time, token, ticket and sequence is a double that holds an integer below 2^53.
--
-- Style
--   Each call of a script creates its functions again. The cost of a function grows with the number
--   of outer variables that it uses: with four it is three to four times the cost with none. So no
--   function uses any. The state of a step is in the table S, and every function is a method of S.
--   Methods that only a queue needs are in a second table, and those for a hash and for rare events
--   in a third; a metatable creates each table when one of its methods is first called. A missing
--   field of S would trigger that, so no field is nil: `false` means none.
--   The client replaces @NAME@ by a constant, or by text that several scripts share.

local S = {
  now = now,
  packed_records = @PACKED_RECORDS@,
  strict = false, -- whether the command must fail when memory is short
  -- What the fast path has read already.
  asked = first ~= nil, first = first or false,
  try = try, answers = answers, done = done,
  -- The current element of the batch, and its operation if it has one.
  key = false, argument = false,
  session = false, sequence = 0, raw_sequence = false, owner = false,
  -- The stored form, 'packed', 'hash' or none, and the string, or the head of the hash, as it was
  -- read. `over`: an expired hash is still there, although the state counts as empty.
  form = false, stored = false, over = false,
  -- Whether this step has written something, has something to write, moved the stored end, or
  -- removed a holder or a place.
  wrote = false, dirty = false, moved = false, shrunk = false,
  -- The state. T has the holders by holder and M the watermarks by session; `false` there means that the
  -- hash has none. `waiters` is the queue.
  spec = false, kind = 0, policy = 0, capacity = 0, waiter_lease = 0,
  token = 0, stored_end = 0, earliest = 0, last_scan = 0,
  used = 0, holder_count = 0, waiter_count = 0,
  T = false, M = false, waiters = false,
  -- Messages to publish, the sessions that are known to listen, and the grants left in this step.
  pending = false, reach = false, budget = 0,
  -- For a hash: holders by slot, what has changed or gone, and the position of its sweep.
  slots = false, fresh_slots = false, gone_holders = false, gone_waiters = false,
  ticks = 0, cursor = 0,

  -- Reading and writing a string --------------------------------------------------------------

  set_spec = function(S, bytes)
    S.spec = bytes
    S.kind, S.policy = string.byte(bytes, 1, 2)
    S.capacity, S.waiter_lease = struct.unpack('<I4d', bytes, 3)
  end,

  mode_of = function(S, holder)
    -- Each hold of a holder is a mode and a raw sequence.
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
    S.over, S.waiters, S.pending, S.reach = false, false, false, false
    S.spec, S.kind, S.policy, S.capacity, S.waiter_lease = @NO_SPEC@, 0, 0, 0, 0
    S.token, S.stored_end, S.earliest, S.last_scan = 0, 0, 0, 0
    S.used, S.holder_count, S.waiter_count, S.T, S.M = 0, 0, 0, {}, {}
    local stored
    if S.asked then
      stored, S.asked = S.first, false
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
    if string.sub(stored, 1, 3) ~= @MAGIC@ or #stored < 54 then
      S:refuse_foreign(stored, 'string')
    end
    local _, spec, token, ends, earliest, last_scan, holders, waiting, watermarks, skip, at =
      struct.unpack('<c3c14ddddBBBH', stored)
    if ends <= S.now then
      return -- past its stored end: counts as empty, and is written over
    end
    S:set_spec(spec)
    S.form, S.token, S.stored_end, S.earliest, S.last_scan = 'packed', token, ends, earliest, last_scan
    for _ = 1, holders do
      local holder_id, holder = string.sub(stored, at, at + 23), nil
      holder, at = S:read_holder(stored, at + 24)
      S.T[holder_id] = holder
      S.used = S.used + S:weight(S:mode_of(holder), holder.permits)
    end
    S.holder_count = holders
    for _ = 1, watermarks do
      local who, seen, till, why
      who, seen, till, why, at = struct.unpack('<c16ddc1', stored, at)
      if till > S.now then
        S.M[who] = { sequence = seen, till = till, why = why }
      end
    end
    if waiting > 0 then
      S:unpack_waiters(waiting, at + skip)
    end
  end,

  -- Every write goes through here.
  write = function(S, ...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
      S:write_again(answer, ...)
    end
    S.wrote = true
  end,

  flush_packed = function(S)
    local out, watermarks, n = {}, 0, 1
    for holder_id, holder in pairs(S.T) do
      if holder then
        n = n + 1
        out[n] = holder_id .. S:write_holder(holder)
      end
    end
    for who, watermark in pairs(S.M) do
      if watermark and watermark.till > S.now then
        n, watermarks = n + 1, watermarks + 1
        out[n] = struct.pack('<c16ddc1', who, watermark.sequence, watermark.till, watermark.why)
      end
    end
    local records = S.holder_count + S.waiter_count + watermarks
    if records > S.packed_records or records > @FEW_RECORDS@
      and (S.holder_count > 1 or S.kind == @SEMAPHORE@ or S.policy ~= @FAIR@)
    then
      return S:become_hash()
    end
    if S.waiter_count > 0 then
      n = n + 1
      out[n] = S:pack_waiters()
    end
    out[1] = struct.pack('<c3c14ddddBBBH', @MAGIC@, S.spec, S.token, S.stored_end, S.earliest,
      S.last_scan, S.holder_count, S.waiter_count, watermarks, 0)
    if S.over then
      S:throw_away()
    end
    if S.form == 'packed' and not S.moved then
      S:write('SET', S.key, table.concat(out), 'KEEPTTL')
    else
      -- Redis forgets the key a second or more after the state itself says that it is over.
      S:write('SET', S.key, table.concat(out), 'PXAT', math.ceil(S.stored_end / 1000) + 1000)
    end
  end,

  -- The state machine -------------------------------------------------------------------------

  cover = function(S, till)
    if S.stored_end < till then
      S.stored_end = till + @SLACK@
      S.moved = true
    end
  end,

  holder_of = function(S, holder_id)
    local holder = S.T[holder_id]
    if holder == nil and S.form == 'hash' then
      holder = S:load_holder(holder_id)
    end
    return holder
  end,

  -- The holder of the operation: (session, owner), for a semaphore (session, sequence).
  holder_of = function(S)
    return S.session .. (S.kind == @SEMAPHORE@ and S.raw_sequence or S.owner)
  end,

  live = function(S)
    local holder = S:holder_of(S:holder_of())
    if holder and holder.ends > S.now and S:hold_at(holder, S.raw_sequence) then
      return holder
    end
  end,

  watermark_of = function(S, who)
    local watermark = S.M[who]
    if watermark == nil and S.form == 'hash' then
      watermark = S:load_watermark(who)
    end
    if watermark and watermark.till > S.now then
      return watermark
    end
  end,

  -- Remembers that an acquire or an end of this sequence was seen. `why` is ' ' for an operation
  -- that is live, or if the reason is not known.
  note = function(S, why)
    local till = S.now + 2 * @DELIVERY_WINDOW@
    local watermark = S:watermark_of(S.session)
    if not watermark or S.sequence > watermark.sequence then
      S.M[S.session] = { sequence = S.sequence, till = till, why = why, fresh = true }
    else
      if S.sequence == watermark.sequence and why ~= ' ' then
        watermark.why = why
      end
      watermark.till, watermark.fresh = till, true
    end
    S.dirty = true
    S:cover(till)
  end,

  remove_holder = function(S, holder_id, holder)
    S.used = S.used - S:weight(S:mode_of(holder), holder.permits)
    S.dirty, S.shrunk = true, true
    if S.form == 'hash' then
      S:remove_slot(holder_id, holder)
      S.T[holder_id] = false
    else
      S.T[holder_id] = nil
    end
    S.holder_count = S.holder_count - 1
  end,

  -- Drops the holder of the operation's owner, and its place, if they have expired. Returns whether
  -- a holder was dropped, and whether the operation itself had expired.
  drop_if_expired = function(S)
    local freed, own = false, false
    local holder_id = S:holder_of()
    local holder = S:holder_of(holder_id)
    if holder and holder.ends <= S.now then
      freed, own = true, S:hold_at(holder, S.raw_sequence) ~= nil
      S:remove_holder(holder_id, holder)
    end
    if S.waiter_count > 0 and S:drop_expired_waiter() then
      own = true
    end
    return freed, own
  end,

  -- Drops expired holders, if that is needed, then grants to the queue. `own`: the reply of this
  -- operation carries its grant, so nothing is published for it.
  settle = function(S, needed, freed, own)
    local expired = needed and S.holder_count > 0 and S.now >= S.earliest and S:scan()
    if S.waiter_count > 0 then
      S:settle_queue(freed or expired, own)
    end
  end,

  -- Whether a new holder shares the epoch of `others` holders. A floor above the stored token
  -- proves that a token was lost. A floor equal to it comes from a client that has read in this
  -- epoch: a new epoch would make resources refuse the readers that are still in it.
  joins = function(S, mode, floor, others)
    return S.kind == @RW_LOCK@ and mode == 'S' and others > 0 and floor <= S.token
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
      -- A scan of many holders may not have seen yet that this one expired; a grant to its owner
      -- must not revive it.
      S:remove_holder(holder_id, holder)
      holder = nil
    end
    if holder then
      -- A queued read of an owner that reads already, by another attempt.
      holder.holds = holder.holds .. mode .. raw
      if holder.flags % 2 ~= @REVOKED@ then
        holder.ends = math.max(holder.ends, ends)
      end
      holder.fresh = true
      return holder
    end
    if not S:joins(mode, floor, S.holder_count) then
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
    S.T[holder_id] = holder
    if S.form == 'hash' then
      S:add_slot(holder_id, holder)
    end
    return holder
  end,

  acquired = function(S, holder)
    return 'A' .. struct.pack('<dI4d', S:token_of(holder), #holder.holds / 9, holder.ends - S.now)
  end,

  -- The reply for an operation that is live already.
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
        S:tell_the_rest()
      end
    end
    return answer
  end,

  -- Runs `command` for every element that is not done yet.
  serve = function(S, command)
    local stamp, out, done = struct.pack('<d', S.now), S.answers or {}, S.done
    for i = done + 1, #KEYS do
      local answer, ok = i > done + 1 and S.try(i), true
      if answer then
        out[i] = answer
      else
        S.key, S.argument = KEYS[i], ARGV[i]
        ok, answer = pcall(S.step, S, command)
        out[i] = ok and '=' .. stamp .. answer or S:problem(answer)
        if type(out[i]) == 'table' then
          return out[i]
        end
      end
    end
    return table.concat(out)
  end,

  -- Reads the operation from the argument, for commands that have one.
  set_operation = function(S)
    S.session, S.sequence, S.owner = struct.unpack('<c16dc8', S.argument)
    S.raw_sequence = string.sub(S.argument, 17, 24)
  end,
}
