-- The general part. A script takes one key and one argument for each element of a batch. It answers
-- with one string: for each element a status, the time and the packed reply. Each element loads,
-- decides and writes separately; all elements see the same time.
--
-- Where a key's state lives
--   packed    A small state is one packed string: a head, then the tenures, marks and places one
--             behind the other, then the next ticket if somebody waits. The general part reads and
--             writes all of it; the fast path may leave a gap before the places.
--   hash      With more records than @PACKED_RECORDS@, or than @FEW_RECORDS@ if no fast path serves
--             the lock, it is a hash with these fields: `head`, `h`HOLDER (a tenure), `s`SLOT (the
--             holder in a slot, to list all of them), `p`TICKET (a place; places form a linked
--             list), `q`SESSION SEQUENCE (a ticket), `m`SESSION (a mark). Fields are read and
--             written one by one. A hash that is nearly empty becomes a string again.
-- The logic depends on neither form: tenure_of(), place_at(), mark_of() and the like load what is
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
  -- removed a tenure or a place.
  wrote = false, dirty = false, moved = false, shrunk = false,
  -- The state. T has the tenures by holder and M the marks by session; `false` there means that the
  -- hash has none. `places` is the queue.
  spec = false, kind = 0, policy = 0, capacity = 0, waiter_lease = 0,
  token = 0, stored_end = 0, earliest = 0, last_scan = 0,
  used = 0, tenure_count = 0, place_count = 0,
  T = false, M = false, places = false,
  -- Messages to publish, the sessions that are known to listen, and the grants left in this step.
  pending = false, reach = false, budget = 0,
  -- For a hash: holders by slot, what has changed or gone, and the position of its sweep.
  slots = false, fresh_slots = false, gone_tenures = false, gone_places = false,
  ticks = 0, cursor = 0,

  -- Reading and writing a string --------------------------------------------------------------

  set_spec = function(S, bytes)
    S.spec = bytes
    S.kind, S.policy = string.byte(bytes, 1, 2)
    S.capacity, S.waiter_lease = struct.unpack('<I4d', bytes, 3)
  end,

  mode_of = function(S, tenure)
    -- Each hold of a tenure is a mode and a raw sequence.
    local holds = tenure.holds
    for at = 1, #holds, 9 do
      if string.byte(holds, at) == @EXCLUSIVE@ then
        return 'X'
      end
    end
    return string.sub(holds, 1, 1)
  end,

  hold_at = function(S, tenure, raw)
    local holds = tenure.holds
    for at = 1, #holds, 9 do
      if string.sub(holds, at + 1, at + 8) == raw then
        return at
      end
    end
  end,

  weight = function(S, mode, permits)
    return mode == 'X' and S.capacity or mode == 'S' and 1 or permits
  end,

  token_of = function(S, tenure)
    return S.kind == @SEMAPHORE@ and tenure.token or S.token
  end,

  fits = function(S, mode, permits)
    return S:weight(mode, permits) <= S.capacity - S.used
  end,

  -- Reads a tenure at position `at`; returns the next position too.
  read_tenure = function(S, from, at)
    local ends, flags, label, holds
    ends, flags, label, holds, at = struct.unpack('<dBBc0I4c0', from, at)
    local tenure = { ends = ends, flags = flags, label = label, holds = holds }
    if flags >= @OWN_TOKEN@ then
      tenure.token, tenure.permits, at = struct.unpack('<dI4', from, at)
    end
    return tenure, at
  end,

  write_tenure = function(S, tenure)
    local label, holds = tenure.label, tenure.holds
    local out = struct.pack('<dBBc0I4c0', tenure.ends, tenure.flags, #label, label, #holds, holds)
    if tenure.flags >= @OWN_TOKEN@ then
      out = out .. struct.pack('<dI4', tenure.token, tenure.permits)
    end
    return out
  end,

  load = function(S)
    S.form, S.wrote, S.dirty, S.moved, S.shrunk = false, false, false, false, false
    S.over, S.places, S.pending, S.reach = false, false, false, false
    S.spec, S.kind, S.policy, S.capacity, S.waiter_lease = @NO_SPEC@, 0, 0, 0, 0
    S.token, S.stored_end, S.earliest, S.last_scan = 0, 0, 0, 0
    S.used, S.tenure_count, S.place_count, S.T, S.M = 0, 0, 0, {}, {}
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
    local _, spec, token, ends, earliest, last_scan, tenures, waiting, marks, skip, at =
      struct.unpack('<c3c14ddddBBBH', stored)
    if ends <= S.now then
      return -- past its stored end: counts as empty, and is written over
    end
    S:set_spec(spec)
    S.form, S.token, S.stored_end, S.earliest, S.last_scan = 'packed', token, ends, earliest, last_scan
    for _ = 1, tenures do
      local holder, tenure = string.sub(stored, at, at + 23), nil
      tenure, at = S:read_tenure(stored, at + 24)
      S.T[holder] = tenure
      S.used = S.used + S:weight(S:mode_of(tenure), tenure.permits)
    end
    S.tenure_count = tenures
    for _ = 1, marks do
      local who, seen, till, why
      who, seen, till, why, at = struct.unpack('<c16ddc1', stored, at)
      if till > S.now then
        S.M[who] = { sequence = seen, till = till, why = why }
      end
    end
    if waiting > 0 then
      S:unpack_places(waiting, at + skip)
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
    local out, marks, n = {}, 0, 1
    for holder, tenure in pairs(S.T) do
      if tenure then
        n = n + 1
        out[n] = holder .. S:write_tenure(tenure)
      end
    end
    for who, mark in pairs(S.M) do
      if mark and mark.till > S.now then
        n, marks = n + 1, marks + 1
        out[n] = struct.pack('<c16ddc1', who, mark.sequence, mark.till, mark.why)
      end
    end
    local records = S.tenure_count + S.place_count + marks
    if records > S.packed_records or records > @FEW_RECORDS@
      and (S.tenure_count > 1 or S.kind == @SEMAPHORE@ or S.policy ~= @FAIR@)
    then
      return S:become_hash()
    end
    if S.place_count > 0 then
      n = n + 1
      out[n] = S:pack_places()
    end
    out[1] = struct.pack('<c3c14ddddBBBH', @MAGIC@, S.spec, S.token, S.stored_end, S.earliest,
      S.last_scan, S.tenure_count, S.place_count, marks, 0)
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

  tenure_of = function(S, holder)
    local tenure = S.T[holder]
    if tenure == nil and S.form == 'hash' then
      tenure = S:load_tenure(holder)
    end
    return tenure
  end,

  -- The holder of the operation: (session, owner), for a semaphore (session, sequence).
  holder_of = function(S)
    return S.session .. (S.kind == @SEMAPHORE@ and S.raw_sequence or S.owner)
  end,

  live = function(S)
    local tenure = S:tenure_of(S:holder_of())
    if tenure and tenure.ends > S.now and S:hold_at(tenure, S.raw_sequence) then
      return tenure
    end
  end,

  mark_of = function(S, who)
    local mark = S.M[who]
    if mark == nil and S.form == 'hash' then
      mark = S:load_mark(who)
    end
    if mark and mark.till > S.now then
      return mark
    end
  end,

  -- Remembers that an acquire or an end of this sequence was seen. `why` is ' ' for an operation
  -- that is live, or if the reason is not known.
  note = function(S, why)
    local till = S.now + 2 * @HORIZON@
    local mark = S:mark_of(S.session)
    if not mark or S.sequence > mark.sequence then
      S.M[S.session] = { sequence = S.sequence, till = till, why = why, fresh = true }
    else
      if S.sequence == mark.sequence and why ~= ' ' then
        mark.why = why
      end
      mark.till, mark.fresh = till, true
    end
    S.dirty = true
    S:cover(till)
  end,

  remove_tenure = function(S, holder, tenure)
    S.used = S.used - S:weight(S:mode_of(tenure), tenure.permits)
    S.dirty, S.shrunk = true, true
    if S.form == 'hash' then
      S:remove_slot(holder, tenure)
      S.T[holder] = false
    else
      S.T[holder] = nil
    end
    S.tenure_count = S.tenure_count - 1
  end,

  -- Drops the tenure of the operation's owner, and its place, if they have expired. Returns whether
  -- a tenure was dropped, and whether the operation itself had expired.
  drop_if_expired = function(S)
    local freed, own = false, false
    local holder = S:holder_of()
    local tenure = S:tenure_of(holder)
    if tenure and tenure.ends <= S.now then
      freed, own = true, S:hold_at(tenure, S.raw_sequence) ~= nil
      S:remove_tenure(holder, tenure)
    end
    if S.place_count > 0 and S:drop_expired_place() then
      own = true
    end
    return freed, own
  end,

  -- Drops expired tenures, if that is needed, then grants to the queue. `own`: the reply of this
  -- operation carries its grant, so nothing is published for it.
  settle = function(S, needed, freed, own)
    local expired = needed and S.tenure_count > 0 and S.now >= S.earliest and S:scan()
    if S.place_count > 0 then
      S:settle_queue(freed or expired, own)
    end
  end,

  -- Whether a new tenure shares the period of `others` tenures. A floor above the stored token
  -- proves that a token was lost. A floor equal to it comes from a client that has read in this
  -- period: a new period would make resources refuse the readers that are still in it.
  joins = function(S, mode, floor, others)
    return S.kind == @RW_LOCK@ and mode == 'S' and others > 0 and floor <= S.token
  end,

  token_after = function(S, floor)
    return math.max(S.token + 1, S.now, floor + 1)
  end,

  grant = function(S, to_session, raw, to_owner, mode, permits, label, floor, ends)
    local holder = to_session .. (S.kind == @SEMAPHORE@ and raw or to_owner)
    S.dirty = true
    S:cover(ends + @RETENTION@)
    local tenure = S:tenure_of(holder)
    if tenure and tenure.ends <= S.now then
      -- A scan of many holders may not have seen yet that this one expired; a grant to its owner
      -- must not revive it.
      S:remove_tenure(holder, tenure)
      tenure = nil
    end
    if tenure then
      -- A queued read of an owner that reads already, by another attempt.
      tenure.holds = tenure.holds .. mode .. raw
      if tenure.flags % 2 ~= @REVOKED@ then
        tenure.ends = math.max(tenure.ends, ends)
      end
      tenure.fresh = true
      return tenure
    end
    if not S:joins(mode, floor, S.tenure_count) then
      S.token = S:token_after(floor)
    end
    if S.tenure_count == 0 or ends < S.earliest then
      S.earliest = ends
    end
    S.used = S.used + S:weight(mode, permits)
    S.tenure_count = S.tenure_count + 1
    tenure = { ends = ends, flags = 0, label = label, holds = mode .. raw, fresh = true }
    if S.kind == @SEMAPHORE@ then
      tenure.flags, tenure.token, tenure.permits = @OWN_TOKEN@, S.token, permits
    end
    S.T[holder] = tenure
    if S.form == 'hash' then
      S:add_slot(holder, tenure)
    end
    return tenure
  end,

  acquired = function(S, tenure)
    return 'A' .. struct.pack('<dI4d', S:token_of(tenure), #tenure.holds / 9, tenure.ends - S.now)
  end,

  -- The reply for an operation that is live already.
  report = function(S)
    local tenure = S:live()
    if tenure then
      return S:acquired(tenure)
    end
    if S.place_count > 0 then
      local ticket, place = S:own_place()
      if ticket and place.ends > S.now then
        return S:queued(ticket, place)
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
