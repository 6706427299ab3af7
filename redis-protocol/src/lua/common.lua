-- Leasehold: the state machine of leasehold-api, ported. Each script is a line of settings, this
-- part, and one command. The specification is `leasehold_api::machine`; functions here carry the
-- names of the functions there.
--
-- A script takes as many keys as arguments, one pair for each element of a batch, and answers
-- with one string: for each element a status, the time, and the packed reply. An element loads,
-- decides, and writes by itself; all elements see the same time.
--
-- Where a key's state lives
--   thin      While it is small, a state is one string: a head, then the tenures, places and
--             marks one behind the other. It is read whole and written whole.
--   crowded   With more than THIN_RECORDS records it is a hash: `head`, `h`HOLDER (a tenure),
--             `s`SLOT (which tenure is the n-th, to find all without looking at anything else),
--             `p`TICKET (a place; places are a linked list), `q`SESSION SEQUENCE (which ticket),
--             `m`SESSION (a mark). It is read and written field by field, and becomes a string
--             again when it is nearly empty.
-- The logic sees neither: it goes through tenure(), place(), mark() and their like, which load
-- what is missing, and flush() writes what has changed.
--
-- Writing
--   Nothing is written before a step has decided everything, except that the writes of a step
--   may begin early with one that changes nothing: a grant hangs on the answer of PUBLISH, and
--   what cannot be written must not be announced. The error of the first write is the server's
--   own and means "not executed"; an error after it means "outcome unknown".
--
-- Numbers: every time, token, ticket and sequence is a double that holds an integer below 2^53.
-- Most functions live in crowd(), which is run only if a queue, an expiry or a hash is met: to
-- create a function costs, and the lock that nobody contends for needs few.

local call, try, pack, parse, sub, byte =
  redis.call, redis.pcall, struct.pack, struct.unpack, string.sub, string.byte

local MAGIC = 'LH\1' -- the last byte is the version of the format
local NO_SPEC = string.rep('\0', 14)
local THIN_RECORDS = 12
local SEMAPHORE, RW_LOCK, EXCLUSIVE = 83, 82, 88 -- 'S', 'R' as kinds of lock, 'X' as a mode
local REVOKED, UPGRADED, OWN_TOKEN = 1, 2, 4 -- flags of a tenure

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stamp = pack('<d', now)

-- One element of the batch.
local key, argument
local strict -- whether the command must fail when memory is short
local session, sequence, raw_sequence, owner -- its operation, if it has one
-- How the state is stored.
local form -- 'thin', 'crowded', or nil if there is none
local stored -- the string, or the head of the hash, as it was read
local over -- whether a hash is to be thrown away before writing
local wrote -- whether anything was written in this step
local moved -- whether the stored end has moved
local dirty -- whether anything must be written
local shrunk -- whether a tenure or a place went
-- The state.
local spec, kind, policy, capacity, waiter_lease
local token, stored_end, earliest, last_scan, used, tenure_count, place_count
local T, M -- tenures by holder, marks by session; `false` in a hash: known to be absent
local places -- everything about the queue, made by crowd() when there is one
local crowd -- the rest of the functions
-- Messages of the step: what is still to be said to each session, and who is known to listen.
local pending, reach

local function set_spec(bytes)
  spec = bytes
  kind, policy = byte(bytes, 1, 2)
  capacity, waiter_lease = parse('<I4d', bytes, 3)
end

local function set_operation()
  session, sequence, owner = parse('<c16dc8', argument)
  raw_sequence = sub(argument, 17, 24)
end

local function start_empty()
  spec, kind, policy, capacity, waiter_lease = NO_SPEC, 0, 0, 0, 0
  token, stored_end, earliest, last_scan = 0, 0, 0, 0
  used, tenure_count, place_count = 0, 0, 0
end

local function foreign(found)
  error({ foreign = found })
end

-- A tenure, from position `at` on; gives the next position too.
local function read_tenure(from, at)
  local ends, flags, label, holds
  ends, flags, label, holds, at = parse('<dBBc0I4c0', from, at)
  local tenure = { ends = ends, flags = flags, label = label, holds = holds }
  if flags >= OWN_TOKEN then
    tenure.token, tenure.permits, at = parse('<dI4', from, at)
  end
  return tenure, at
end

local function write_tenure(tenure)
  local label, holds = tenure.label, tenure.holds
  local out = pack('<dBBc0I4c0', tenure.ends, tenure.flags, #label, label, #holds, holds)
  if tenure.flags >= OWN_TOKEN then
    out = out .. pack('<dI4', tenure.token, tenure.permits)
  end
  return out
end

-- Whether any hold is exclusive; the holds of a tenure are its modes and raw sequences in turn.
local function mode_of(tenure)
  local holds = tenure.holds
  for at = 1, #holds, 9 do
    if byte(holds, at) == EXCLUSIVE then
      return 'X'
    end
  end
  return sub(holds, 1, 1)
end

local function hold_at(tenure, raw)
  local holds = tenure.holds
  for at = 1, #holds, 9 do
    if sub(holds, at + 1, at + 8) == raw then
      return at
    end
  end
end

local function weight(mode, permits)
  return mode == 'X' and capacity or mode == 'S' and 1 or permits
end

local function load_thin()
  local bytes, tenures, waiting, marks, at, ends
  local _
  _, bytes, token, ends, earliest, last_scan, tenures, waiting, marks, at =
    parse('<c3c14ddddBBB', stored)
  if ends <= now then
    form = nil -- past its stored end: counts as empty, and is written over
    return
  end
  set_spec(bytes)
  stored_end = ends
  for _ = 1, tenures do
    local holder = sub(stored, at, at + 23)
    local tenure
    tenure, at = read_tenure(stored, at + 24)
    T[holder] = tenure
    used = used + weight(mode_of(tenure), tenure.permits)
  end
  tenure_count = tenures
  for _ = 1, marks do
    local who, seen, till, why
    who, seen, till, why, at = parse('<c16ddc1', stored, at)
    if till > now then
      M[who] = { sequence = seen, till = till, why = why }
    end
  end
  if waiting > 0 then
    crowd().load_thin_places(waiting, at)
  end
end

local function load()
  form, stored, over, wrote, moved, dirty, shrunk = nil, nil, false, false, false, false, false
  T, M, places, pending, reach = {}, {}, nil, nil, nil
  start_empty()
  stored = try('GET', key)
  if stored == false then
    return
  end
  if type(stored) == 'table' then
    return crowd().load_crowded(stored.err)
  end
  if sub(stored, 1, 2) ~= 'LH' or #stored < 52 then
    foreign('string')
  end
  if sub(stored, 1, 3) ~= MAGIC then
    foreign('leasehold format ' .. byte(stored, 3))
  end
  form = 'thin'
  load_thin()
end

-- Redis forgets the key a second or more after the state itself says that it is over.
local function expiry()
  return math.ceil(stored_end / 1000) + 1000
end

-- Every write goes through here.
local function write(...)
  local answer = try(...)
  if type(answer) ~= 'table' or not answer.err then
    wrote = true
    return
  end
  if not wrote and not strict and string.find(answer.err, 'OOM', 1, true) then
    -- Once a script has written, memory is no longer asked about; moving an expiry to where it
    -- is (or of a key that is not there) passes.
    try('PEXPIREAT', key, expiry())
    answer = try(...)
    if type(answer) ~= 'table' or not answer.err then
      wrote = true
      return
    end
  end
  error(answer)
end

local function flush_thin()
  local out, marks, n = {}, 0, 1
  for holder, tenure in pairs(T) do
    if tenure then
      n = n + 1
      out[n] = holder .. write_tenure(tenure)
    end
  end
  for who, mark in pairs(M) do
    if mark and mark.till > now then
      n, marks = n + 1, marks + 1
      out[n] = pack('<c16ddc1', who, mark.sequence, mark.till, mark.why)
    end
  end
  if tenure_count + place_count + marks > THIN_RECORDS then
    return crowd().become_crowded()
  end
  if place_count > 0 then
    n = n + 1
    out[n] = crowd().thin_places()
  end
  out[1] = pack('<c3c14ddddBBB', MAGIC, spec, token, stored_end, earliest, last_scan,
    tenure_count, place_count, marks)
  local value = table.concat(out)
  if over then
    crowd().throw_away()
  end
  if form == 'thin' and not moved then
    write('SET', key, value, 'KEEPTTL')
  else
    write('SET', key, value, 'PXAT', expiry())
  end
end

local function flush()
  if not dirty then
    return
  end
  if form == 'crowded' then
    crowd().flush_crowded()
  else
    flush_thin()
  end
  if pending then
    crowd().tell_the_rest()
  end
end

-- The state machine ------------------------------------------------------------------------

local function cover(till)
  if stored_end < till then
    stored_end = till + math.floor(RETENTION / 8)
    moved = true
  end
end

local function cover_tenure(ends)
  return cover(ends + RETENTION)
end

local function tenure_of(holder)
  local tenure = T[holder]
  if tenure == nil and form == 'crowded' then
    tenure = crowd().load_tenure(holder)
  end
  return tenure
end

-- Whose tenure the operation belongs to: (session, owner), for a semaphore (session, sequence).
local function holder_of()
  return session .. (kind == SEMAPHORE and raw_sequence or owner)
end

local function live()
  local tenure = tenure_of(holder_of())
  if tenure and tenure.ends > now and hold_at(tenure, raw_sequence) then
    return tenure
  end
end

local function mark_of(who)
  local mark = M[who]
  if mark == nil and form == 'crowded' then
    mark = crowd().load_mark(who)
  end
  if mark and mark.till > now then
    return mark
  end
end

-- Remembers that an acquire or an end of this sequence was seen. ' ' for `why`: live, or not
-- known.
local function note(why)
  local till = now + 2 * HORIZON
  local mark = mark_of(session)
  if not mark or sequence > mark.sequence then
    M[session] = { sequence = sequence, till = till, why = why, fresh = true }
  else
    if sequence == mark.sequence and why ~= ' ' then
      mark.why = why
    end
    mark.till, mark.fresh = till, true
  end
  dirty = true
  cover(till)
end

local function fits(mode, permits)
  return weight(mode, permits) <= capacity - used
end

local function token_of(tenure)
  return kind == SEMAPHORE and tenure.token or token
end

local function remove_tenure(holder, tenure)
  used = used - weight(mode_of(tenure), tenure.permits)
  dirty, shrunk = true, true
  if form == 'crowded' then
    crowd().remove_slot(holder, tenure)
    T[holder] = false
  else
    T[holder] = nil
  end
  tenure_count = tenure_count - 1
end

-- Whether a new tenure shares the period of `others` tenures. A floor above the stored token
-- proves that a token was lost. One equal to it comes from a client that has read in this very
-- period: a new period would get those refused who still read in it.
local function joins(mode, floor, others)
  return kind == RW_LOCK and mode == 'S' and others > 0 and floor <= token
end

local function token_after(floor)
  return math.max(token + 1, now, floor + 1)
end

local function grant(to_session, raw, to_owner, mode, permits, label, floor, ends)
  local holder = to_session .. (kind == SEMAPHORE and raw or to_owner)
  dirty = true
  cover_tenure(ends)
  local tenure = tenure_of(holder)
  if tenure and tenure.ends <= now then
    -- Among many holders an expired one may not have been looked at yet; a grant to its owner
    -- must not bring it back.
    remove_tenure(holder, tenure)
    tenure = nil
  end
  if tenure then
    -- A queued read of an owner that has come to read by another attempt.
    tenure.holds = tenure.holds .. mode .. raw
    if tenure.flags % 2 ~= REVOKED then
      tenure.ends = math.max(tenure.ends, ends)
    end
    tenure.fresh = true
    return tenure
  end
  if not joins(mode, floor, tenure_count) then
    token = token_after(floor)
  end
  if tenure_count == 0 or ends < earliest then
    earliest = ends
  end
  used = used + weight(mode, permits)
  tenure_count = tenure_count + 1
  tenure = { ends = ends, flags = 0, label = label, holds = mode .. raw, fresh = true }
  if kind == SEMAPHORE then
    tenure.flags, tenure.token, tenure.permits = OWN_TOKEN, token, permits
  end
  T[holder] = tenure
  if form == 'crowded' then
    crowd().add_slot(holder, tenure)
  end
  return tenure
end

-- Whether a tenure went, and whether the operation itself was what had expired.
local function drop_if_expired()
  local freed, own = false, false
  local holder = holder_of()
  local tenure = tenure_of(holder)
  if tenure and tenure.ends <= now then
    freed, own = true, hold_at(tenure, raw_sequence) ~= nil
    remove_tenure(holder, tenure)
  end
  if place_count > 0 and crowd().drop_expired_place() then
    own = true
  end
  return freed, own
end

local function why_not(expired)
  if expired then
    return 'X'
  end
  local mark = mark_of(session)
  if mark and mark.sequence == sequence and mark.why ~= ' ' then
    return mark.why
  end
  return 'U'
end

-- Drops expired tenures, if it matters, then grants to the queue. `own`: the attempt whose reply
-- carries the grant, so that it need not be told of it.
local function settle(needed, freed, own)
  local expired = needed and tenure_count > 0 and now >= earliest and crowd().scan()
  if place_count > 0 then
    crowd().settle_queue(freed or expired, own)
  end
end

local function left(ends)
  return ends > now and ends - now or 0
end

local function acquired(tenure)
  return 'A' .. pack('<dI4d', token_of(tenure), #tenure.holds / 9, left(tenure.ends))
end

local function view(tenure)
  local mode = mode_of(tenure)
  return pack('<c1I4dd', mode, tenure.permits or 0, token_of(tenure), left(tenure.ends))
end

local function step(command)
  load()
  local answer = command()
  flush()
  return answer
end

-- Plays `command` to every element.
local function serve(command)
  local out = {}
  for i = 1, #KEYS do
    key, argument = KEYS[i], ARGV[i]
    local ok, answer = pcall(step, command)
    if ok then
      out[i] = '=' .. stamp .. answer
    else
      if type(answer) ~= 'table' then
        -- From 7.0 on pcall hands a server error over as its text, which begins with its word
        -- (OOM, READONLY, ...); what Lua itself complains of begins with the name of the script.
        local word = string.find(answer, '^%u+ ') and '' or 'ERR '
        answer = { err = word .. answer }
      end
      local status, text = 'F', answer.foreign
      if not text then
        status, text = wrote and 'U' or 'E', answer.err
      end
      if status == 'E' and #KEYS == 1 then
        return redis.error_reply(text)
      end
      text = sub(text, 1, 255)
      out[i] = status .. stamp .. pack('B', #text) .. text
    end
  end
  return table.concat(out)
end
