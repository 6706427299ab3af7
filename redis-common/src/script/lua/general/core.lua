-- The general part. A script takes as many keys as arguments, one pair for each element of a batch,
-- and answers with one string: for each element a status, the time, and the packed reply. An element
-- loads, decides, and writes by itself; all elements see the same time.
--
-- Where a key's state lives
--   packed    A small state is one packed string: a head, then the tenures, marks and places one
--             behind the other, then the next ticket if somebody waits. The general part reads and
--             writes all of it; the fast path may leave a gap before the places.
--   hash      With more records than @PACKED_RECORDS@, or than @FEW_RECORDS@ if no fast path serves
--             the lock, it is a hash: `head`, `h`HOLDER (a tenure),
--             `s`SLOT (which tenure is the n-th, to find all without looking at anything else),
--             `p`TICKET (a place; places are a linked list), `q`SESSION SEQUENCE (which ticket),
--             `m`SESSION (a mark). It is read and written field by field, and becomes a string
--             again when it is nearly empty.
-- The logic sees neither: it goes through tenure_of(), place_at(), mark_of() and their like, which
-- load what is missing, and step() writes what has changed.
--
-- Writing
--   Nothing is written before a step has decided everything, except that the writes of a step
--   may begin early with one that changes nothing: a grant hangs on the answer of PUBLISH, and
--   what cannot be written must not be announced. The error of the first write is the server's
--   own and means "not executed"; an error after it means "outcome unknown".
--
-- Numbers: every time, token, ticket and sequence is a double that holds an integer below 2^53.
--
-- How it is written
--   Functions are made anew in every call of a script. What that costs depends on how many
--   variables of their surroundings they use, more than on what they do: three to four times as
--   much with four of them as with none. Hence no function uses any: all that a step is about is in
--   one table, S, which every function gets as its first parameter, as a method does. What only a
--   queue needs is in another table, what only a hash and rare events need in a third; a metatable
--   makes each when a method of it is first called. So a field of S is never nil: `false` says that
--   there is nothing.
--   Constants in @NAME@ are put in when the script is put together.

local S = {
  now = now,
  packed_records = @PACKED_RECORDS@,
  strict = false, -- whether the command must fail when memory is short
  -- What the fast path has read already.
  asked = first ~= nil, first = first or false,
  try = try, answers = answers, done = done,
  -- One element of the batch, and its operation if it has one.
  key = false, argument = false,
  session = false, sequence = 0, raw_sequence = false, owner = false,
  -- How the state is stored: 'packed', 'hash', or not at all; and the string, or the head of the
  -- hash, as it was read. There may be an old one (over) although the state counts as empty.
  form = false, stored = false, over = false,
  -- Whether this step has written anything, has something to write, moved the stored end, or took
  -- a tenure or a place out.
  wrote = false, dirty = false, moved = false, shrunk = false,
  -- The state. Tenures by holder and marks by session are in T and M; `false` there: known to be
  -- absent from the hash. The queue is in `places`.
  spec = false, kind = 0, policy = 0, capacity = 0, waiter_lease = 0,
  token = 0, stored_end = 0, earliest = 0, last_scan = 0,
  used = 0, tenure_count = 0, place_count = 0,
  T = false, M = false, places = false,
  -- What is still to be said, and who has been found to listen; grants left in this step.
  pending = false, reach = false, budget = 0,
  -- Of a hash: tenures by slot, what of it has changed or gone, and where its sweep stands.
  slots = false, fresh_slots = false, gone_tenures = false, gone_places = false,
  ticks = 0, cursor = 0,

  -- Reading and writing a string --------------------------------------------------------------

  set_spec = function(S, bytes)
    S.spec = bytes
    S.kind, S.policy = string.byte(bytes, 1, 2)
    S.capacity, S.waiter_lease = struct.unpack('<I4d', bytes, 3)
  end,

  mode_of = function(S, tenure)
    -- The holds of a tenure are a mode and a raw sequence each, one behind the other.
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

  -- A tenure as it is stored, from position `at` on; gives the next position too.
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

  -- Whose tenure the operation belongs to: (session, owner), for a semaphore (session, sequence).
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

  -- Remembers that an acquire or an end of this sequence was seen. ' ' for `why`: live, or not
  -- known.
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

  -- Drops the tenure of the operation's owner, and its own place, if they have expired. Whether a
  -- tenure went, and whether the operation itself was what had expired.
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

  -- Drops expired tenures, if it matters, then grants to the queue. `own`: the attempt whose reply
  -- carries the grant, so that it need not be told of it.
  settle = function(S, needed, freed, own)
    local expired = needed and S.tenure_count > 0 and S.now >= S.earliest and S:scan()
    if S.place_count > 0 then
      S:settle_queue(freed or expired, own)
    end
  end,

  -- Whether a new tenure shares the period of `others` tenures. A floor above the stored token
  -- proves that a token was lost. One equal to it comes from a client that has read in this very
  -- period: a new period would get those refused who still read in it.
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
      -- Among many holders an expired one may not have been looked at yet; a grant to its owner
      -- must not bring it back.
      S:remove_tenure(holder, tenure)
      tenure = nil
    end
    if tenure then
      -- A queued read of an owner that has come to read by another attempt.
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

  -- Plays `command` to every element that is not done yet.
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

  -- For commands that name one: takes the operation out of the argument.
  set_operation = function(S)
    S.session, S.sequence, S.owner = struct.unpack('<c16dc8', S.argument)
    S.raw_sequence = string.sub(S.argument, 17, 24)
  end,
}
