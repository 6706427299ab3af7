-- What a lock needs only when somebody waits, something has expired, or the state is a hash.
-- This is the body of a function, made when crowd() is first called.

local C = {}
local NONE = 0 -- no ticket
local CHUNK = 500 -- fields of one command; Lua's stack bounds it
local LISTENING, AWAY = 1, 2 -- flags of a place
local SWEEP_EVERY, SWEEP_COUNT = 8, 64
local TENURE, MARK = 104, 109 -- 'h' and 'm' as the first byte of a field

-- The hash ---------------------------------------------------------------------------------

local slots, fresh_slots, gone_tenures, gone_places, ticks, cursor

local function no_places()
  S.places = {
    by_ticket = {}, tickets = {},
    next_ticket = 1, first = NONE, last = NONE, away = 0, earliest = 0,
  }
end

local function start_hash(tick, swept_to)
  slots, fresh_slots, gone_tenures, gone_places = {}, {}, {}, {}
  ticks, cursor = tick, swept_to
end

local function queue()
  if not S.places then
    no_places()
  end
  return S.places
end

-- Something else lives under the key: says what it is. Our own states start with their format.
function C.refuse_foreign(stored, kind)
  if string.sub(stored, 1, 2) == string.sub(@MAGIC@, 1, 2) and #stored > 2 then
    kind = 'leasehold format ' .. string.byte(stored, 3)
  end
  error({ foreign = kind })
end

function C.load_crowded(problem)
  if not string.find(problem, 'WRONGTYPE', 1, true) then
    error({ server = problem })
  end
  S.stored = redis.pcall('HGET', S.key, 'head')
  if type(S.stored) == 'table' then
    C.refuse_foreign('', redis.call('TYPE', S.key).ok)
  end
  if not S.stored or string.sub(S.stored, 1, 3) ~= @MAGIC@ or #S.stored < 109 then
    C.refuse_foreign(S.stored or '', 'hash')
  end
  local _, bytes, last_token, ends, early, scanned, weights, tenures, waiting, away, ticket, first,
    last, bound, tick, swept_to = struct.unpack('<c3c14ddddI4I4I4I4ddddI4d', S.stored)
  if ends <= S.now then
    S.over = true
    return
  end
  S.form = 'crowded'
  set_spec(bytes)
  S.token, S.stored_end, S.earliest, S.last_scan = last_token, ends, early, scanned
  S.used, S.tenure_count, S.place_count = weights, tenures, waiting
  start_hash(tick, swept_to)
  S.places = {
    by_ticket = {}, tickets = {},
    next_ticket = ticket, first = first, last = last, away = away, earliest = bound,
  }
end

local function parse_tenure(bytes)
  local slot, at = struct.unpack('<I4', bytes)
  local tenure = read_tenure(bytes, at)
  tenure.slot = slot
  return tenure
end

function C.load_tenure(holder)
  local bytes = redis.call('HGET', S.key, 'h' .. holder)
  local tenure = bytes and parse_tenure(bytes)
  S.T[holder] = tenure
  return tenure
end

function C.load_mark(who)
  local bytes = redis.call('HGET', S.key, 'm' .. who)
  local mark = false
  if bytes then
    local seen, till, why = struct.unpack('<ddc1', bytes)
    mark = { sequence = seen, till = till, why = why }
  end
  S.M[who] = mark
  return mark
end

local function slot_holder(slot)
  local holder = slots[slot]
  if not holder then
    holder = redis.call('HGET', S.key, 's' .. slot)
    slots[slot] = holder
  end
  return holder
end

-- Tenures are numbered from 1 without gaps: the last moves into the place of one that goes.
function C.add_slot(holder, tenure)
  tenure.slot = S.tenure_count
  slots[S.tenure_count] = holder
  fresh_slots[S.tenure_count] = true
end

function C.remove_slot(holder_gone, tenure)
  gone_tenures[holder_gone] = true
  local last = S.tenure_count
  if tenure.slot ~= last then
    local holder = slot_holder(last)
    local mover = tenure_of(holder)
    mover.slot, mover.fresh = tenure.slot, true
    slots[tenure.slot] = holder
    fresh_slots[tenure.slot] = true
  end
  slots[last] = nil
  fresh_slots[last] = true
end

-- Calls `visit(holder, ends)` for every tenure, without keeping all of them in memory.
local function each_tenure(visit)
  if S.form ~= 'crowded' then
    for holder, tenure in pairs(S.T) do
      visit(holder, tenure.ends)
    end
    return
  end
  for from = 1, S.tenure_count, CHUNK do
    local till = math.min(from + CHUNK - 1, S.tenure_count)
    local fields = {}
    for slot = from, till do
      fields[#fields + 1] = 's' .. slot
    end
    local holders = redis.call('HMGET', S.key, unpack(fields))
    for i = 1, #fields do
      local holder = slots[from + i - 1] or holders[i]
      holders[i], fields[i] = holder, 'h' .. holder
    end
    local records = redis.call('HMGET', S.key, unpack(fields))
    for i = 1, #fields do
      local known = S.T[holders[i]]
      visit(holders[i], known and known.ends or struct.unpack('<d', records[i], 5), records[i])
    end
  end
end

-- The queue --------------------------------------------------------------------------------

local function read_place(from, at)
  local place, flags = {}, nil
  place.session, place.raw, place.owner, place.mode, place.permits, place.floor, place.ends,
    place.till, flags, place.away_marks, place.label, at =
    struct.unpack('<c16c8c8c1I4dddBBBc0', from, at)
  place.listening = flags % 2 == LISTENING
  place.away = flags >= AWAY
  return place, at
end

local function write_place(place)
  local flags = (place.listening and LISTENING or 0) + (place.away and AWAY or 0)
  return struct.pack('<c16c8c8c1I4dddBBBc0', place.session, place.raw, place.owner, place.mode,
    place.permits, place.floor, place.ends, place.till, flags, place.away_marks, #place.label,
    place.label)
end

local function place_at(ticket)
  local place = S.places.by_ticket[ticket]
  if place == nil and S.form == 'crowded' then
    local bytes = redis.call('HGET', S.key, string.format('p%.0f', ticket))
    place = false
    if bytes then
      local before, after, at = struct.unpack('<dd', bytes)
      place = read_place(bytes, at)
      place.before, place.after = before, after
    end
    S.places.by_ticket[ticket] = place
  end
  return place
end

local function ticket_of(who, raw)
  local name = who .. raw
  local ticket = S.places.tickets[name]
  if ticket == nil and S.form == 'crowded' then
    local bytes = redis.call('HGET', S.key, 'q' .. name)
    ticket = bytes and struct.unpack('<d', bytes)
    S.places.tickets[name] = ticket
  end
  return ticket
end

-- Puts a place at the end of the queue, under its ticket.
local function append(ticket, place)
  local q = queue()
  place.before, place.after = q.last, NONE
  if q.last == NONE then
    q.first = ticket
  else
    local before = place_at(q.last)
    before.after, before.fresh = ticket, true
  end
  q.last = ticket
  q.by_ticket[ticket] = place
  q.tickets[place.session .. place.raw] = ticket
  if q.earliest > place.ends or S.place_count == 0 then
    q.earliest = place.ends
  end
  S.place_count = S.place_count + 1
end

local function remove_place(ticket, place)
  local q = S.places
  if place.before == NONE then
    q.first = place.after
  else
    local before = place_at(place.before)
    before.after, before.fresh = place.after, true
  end
  if place.after == NONE then
    q.last = place.before
  else
    local after = place_at(place.after)
    after.before, after.fresh = place.before, true
  end
  local absent = nil
  if S.form == 'crowded' then
    absent = false
    gone_places[ticket] = place.session .. place.raw
  end
  q.by_ticket[ticket] = absent
  q.tickets[place.session .. place.raw] = absent
  if place.away then
    q.away = q.away - 1
  end
  S.place_count = S.place_count - 1
  if S.place_count == 0 then
    q.next_ticket = 1
  end
  S.dirty, S.shrunk = true, true
end

-- In a string the places stand in their order, each behind its ticket.
function C.load_thin_places(count, at)
  local q = queue()
  q.next_ticket, at = struct.unpack('<d', S.stored, at)
  for _ = 1, count do
    local ticket, place
    ticket, at = struct.unpack('<d', S.stored, at)
    place, at = read_place(S.stored, at)
    append(ticket, place)
    if place.away then
      q.away = q.away + 1
    end
  end
end

function C.thin_places()
  local out = { struct.pack('<d', S.places.next_ticket) }
  local ticket = S.places.first
  while ticket ~= NONE do
    local place = place_at(ticket)
    out[#out + 1] = struct.pack('<d', ticket) .. write_place(place)
    ticket = place.after
  end
  return table.concat(out)
end

-- Writing ----------------------------------------------------------------------------------

local function expiry()
  return math.ceil(S.stored_end / 1000) + 1000
end

-- What write() does when a write has failed.
function C.write_again(answer, ...)
  if not S.wrote and not S.strict and string.find(answer.err, 'OOM', 1, true) then
    -- Once a script has written, memory is no longer asked about; moving an expiry to where it
    -- is (or of a key that is not there) passes.
    redis.pcall('PEXPIREAT', S.key, expiry())
    answer = redis.pcall(...)
  end
  if type(answer) == 'table' and answer.err then
    error({ server = answer.err })
  end
end

-- The element's part of the answer when its step has failed; for a single element that was not
-- executed, the server's own error.
function C.problem(answer)
  local status, text = 'F', type(answer) == 'table' and answer.foreign
  if not text then
    status = S.wrote and 'U' or 'E'
    text = type(answer) == 'table' and answer.server or tostring(answer)
    -- Redis 6.2 puts the place in the script before what the server said.
    text = string.match(text, '^@[^:]*: *%d+: *%-(.*)$') or text
    if not string.match(text, '^%u+ ') then
      text = 'ERR ' .. text
    end
  end
  if status == 'E' and #KEYS == 1 then
    return { err = text }
  end
  text = string.sub(text, 1, 255)
  return status .. struct.pack('<dB', S.now, #text) .. text
end

-- A write that changes nothing and fails if the command may not write.
local function make_sure()
  if S.wrote then
    return
  end
  if not S.strict then
    write('PEXPIREAT', S.key, expiry())
  elseif S.form == 'crowded' or S.over then
    write('HSET', S.key, 'head', S.stored)
  elseif S.stored then
    write('SET', S.key, S.stored, 'KEEPTTL')
  end
end

function C.throw_away()
  make_sure()
  write('UNLINK', S.key)
  S.over = false
end

local function write_all(command, list)
  for from = 1, #list, CHUNK do
    write(command, S.key, unpack(list, from, math.min(from + CHUNK - 1, #list)))
  end
end

local function head()
  local q = queue()
  return struct.pack('<c3c14ddddI4I4I4I4ddddI4d', @MAGIC@, S.spec, S.token, S.stored_end, S.earliest, S.last_scan,
    S.used, S.tenure_count, S.place_count, q.away, q.next_ticket, q.first, q.last, q.earliest, ticks, cursor)
end

local function put_places(set)
  for ticket, place in pairs(S.places.by_ticket) do
    if place and place.fresh then
      set[#set + 1] = string.format('p%.0f', ticket)
      set[#set + 1] = struct.pack('<dd', place.before, place.after) .. write_place(place)
      if place.arrived then
        set[#set + 1] = 'q' .. place.session .. place.raw
        set[#set + 1] = struct.pack('<d', ticket)
      end
    end
  end
end

local function put_tenures_and_marks(set)
  for holder, tenure in pairs(S.T) do
    if tenure and tenure.fresh then
      set[#set + 1] = 'h' .. holder
      set[#set + 1] = struct.pack('<I4', tenure.slot) .. write_tenure(tenure)
    end
  end
  for who, mark in pairs(S.M) do
    if mark and mark.fresh then
      set[#set + 1] = 'm' .. who
      set[#set + 1] = struct.pack('<ddc1', mark.sequence, mark.till, mark.why)
    end
  end
end

local function drop_fields()
  local gone = {}
  for ticket, name in pairs(gone_places) do
    if not S.places.by_ticket[ticket] then
      gone[#gone + 1] = string.format('p%.0f', ticket)
    end
    if not S.places.tickets[name] then
      gone[#gone + 1] = 'q' .. name
    end
  end
  for holder in pairs(gone_tenures) do
    if not S.T[holder] then
      gone[#gone + 1] = 'h' .. holder
    end
  end
  for slot in pairs(fresh_slots) do
    if not slots[slot] then
      gone[#gone + 1] = 's' .. slot
    end
  end
  return gone
end

-- Marks that are over cannot be seen any more; a few are looked for now and then, so that
-- they do not pile up in a hash that lives long.
local function sweep_marks(gone)
  ticks = (ticks + 1) % SWEEP_EVERY
  if ticks ~= 0 then
    return
  end
  local found = redis.call('HSCAN', S.key, cursor, 'COUNT', SWEEP_COUNT)
  cursor = tonumber(found[1])
  local fields = found[2]
  for i = 1, #fields, 2 do
    local field = fields[i]
    if string.byte(field) == MARK then
      local who = string.sub(field, 2)
      local _, till = struct.unpack('<dd', fields[i + 1])
      if till <= S.now and not (S.M[who] and S.M[who].fresh) then
        gone[#gone + 1] = field
      end
    end
  end
end

local function load_rest()
  local all = redis.call('HGETALL', S.key)
  for i = 1, #all, 2 do
    local field, name = string.byte(all[i]), string.sub(all[i], 2)
    if field == TENURE and S.T[name] == nil and #name == 24 then
      S.T[name] = parse_tenure(all[i + 1])
    elseif field == MARK and S.M[name] == nil then
      local seen, till, why = struct.unpack('<ddc1', all[i + 1])
      S.M[name] = { sequence = seen, till = till, why = why }
    end
  end
end

function C.flush_crowded()
  local nearly_empty = S.shrunk and S.place_count == 0 and S.tenure_count <= 1
  if nearly_empty and redis.call('HLEN', S.key) <= S.thin_records then
    load_rest()
    S.over = true
    return flush_thin()
  end
  local set, gone = { 'head', '' }, drop_fields()
  sweep_marks(gone)
  set[2] = head()
  put_places(set)
  put_tenures_and_marks(set)
  for slot in pairs(fresh_slots) do
    if slots[slot] then
      set[#set + 1] = 's' .. slot
      set[#set + 1] = slots[slot]
    end
  end
  write_all('HSET', set)
  write_all('HDEL', gone)
  if S.moved then
    write('PEXPIREAT', S.key, expiry())
  end
end

-- Turns the string into a hash with everything in it.
function C.become_crowded()
  local slot = 0
  start_hash(0, 0)
  for holder, tenure in pairs(S.T) do
    slot = slot + 1
    slots[slot], fresh_slots[slot] = holder, true
    tenure.slot, tenure.fresh = slot, true
  end
  for _, mark in pairs(S.M) do
    mark.fresh = true
  end
  for _, place in pairs(queue().by_ticket) do
    place.fresh, place.arrived = true, true
  end
  C.throw_away()
  S.shrunk, S.moved = false, true
  C.flush_crowded()
end

-- Telling ----------------------------------------------------------------------------------

local function publish(to, body)
  local prefix = string.match(S.key, '^[^{]*')
  local channel = prefix .. 'c:' .. string.sub(redis.sha1hex(to), 1, 16)
  return redis.pcall('PUBLISH', channel, struct.pack('<d', S.now) .. body)
end

-- Says something after the state is written, unless it is known that nobody listens.
local function tell(to, body)
  S.pending = S.pending or {}
  S.pending[to] = (S.pending[to] or '') .. body
end
C.tell = tell

-- Says something and finds out whether anybody listens. Only the first message of a step to a
-- session is sent at once; what comes later goes in one message at the end.
local function heard(to, body)
  if not @PUSH@ then
    return true
  end
  S.reach = S.reach or {}
  if S.reach[to] == nil then
    make_sure()
    local before = S.pending and S.pending[to] or ''
    local listeners = publish(to, before .. body)
    -- An error means: unknown, which counts as listening.
    S.reach[to] = type(listeners) == 'table' or listeners > 0
    if S.pending then
      S.pending[to] = nil
    end
  elseif S.reach[to] then
    tell(to, body)
  end
  return S.reach[to]
end

function C.tell_the_rest()
  for to, body in pairs(S.pending) do
    if @PUSH@ and not (S.reach and S.reach[to] == false) then
      publish(to, body)
    end
  end
end

-- Settling ---------------------------------------------------------------------------------

-- Looks at all ends if that is due; whether a tenure was dropped.
function C.scan()
  if S.tenure_count > @SCAN_FREELY@ and S.now < S.last_scan + @SCAN_INTERVAL@ then
    return false
  end
  local expired, least = {}, nil
  each_tenure(function(holder, ends, bytes)
    if ends <= S.now then
      expired[#expired + 1] = holder
      S.T[holder] = S.T[holder] or parse_tenure(bytes)
    elseif not least or ends < least then
      least = ends
    end
  end)
  for i = 1, #expired do
    remove_tenure(expired[i], S.T[expired[i]])
  end
  S.earliest, S.last_scan, S.dirty = least or 0, S.now, true
  return #expired > 0
end

-- Turns a place into a claim, which ends where the place would have.
local function grant_place(ticket, place)
  remove_place(ticket, place)
  grant(place.session, place.raw, place.owner, place.mode, place.permits, place.label,
    place.floor, place.ends)
end

-- What a waiter is told when its place is granted, before it is.
local function claim_message(place)
  local holder = place.session .. (S.kind == @SEMAPHORE@ and place.raw or place.owner)
  local tenure, others = tenure_of(holder), S.tenure_count
  if tenure and tenure.ends <= S.now then
    tenure, others = nil, others - 1
  end
  local number, ends = S.token, place.ends
  if tenure then
    ends = tenure.flags % 2 == @REVOKED@ and tenure.ends or math.max(ends, tenure.ends)
  elseif not joins(place.mode, place.floor, others) then
    number = token_after(place.floor)
  end
  return 'G' .. place.raw .. struct.pack('<dd', number, ends - S.now)
end

-- Grants a place to a waiter that will hear of it, and marks it away otherwise.
local function offer(ticket, place)
  if not place.listening then
    return grant_place(ticket, place)
  end
  local message = claim_message(place)
  if place.away_marks >= @MAX_AWAY_MARKS@ then
    tell(place.session, message)
  elseif not heard(place.session, message) then
    place.away, place.away_marks, place.fresh = true, place.away_marks + 1, true
    S.places.away = S.places.away + 1
    S.dirty = true
    return
  end
  grant_place(ticket, place)
end

local budget

-- Grants places of one mode, or of any, in the order of their tickets until one does not fit.
-- Whether all were passed.
local function grant_in_order(mode, own)
  local ticket = S.places.first
  while ticket ~= NONE do
    local place = place_at(ticket)
    local after = place.after
    if place.ends <= S.now then
      remove_place(ticket, place)
    elseif not place.away and (not mode or place.mode == mode) then
      if budget == 0 or not fits(place.mode, place.permits) then
        return false
      end
      budget = budget - 1
      if own and place.session == S.session and place.raw == S.raw_sequence
        and place.owner == S.owner
      then
        grant_place(ticket, place)
      else
        offer(ticket, place)
      end
    end
    ticket = after
  end
  return true
end

-- Tells the first waiter that listens that it may try.
local function hint()
  local ticket = S.places.first
  while ticket ~= NONE do
    local place = place_at(ticket)
    if place.ends > S.now and place.listening then
      if budget == 0 then
        return
      end
      budget = budget - 1
      if heard(place.session, 'H' .. place.raw) then
        return
      end
    end
    ticket = place.after
  end
end

function C.settle_queue(freed, own)
  budget = @SETTLE_BUDGET@
  if S.policy == @BARGING@ then
    while S.places.first ~= NONE and place_at(S.places.first).ends <= S.now do
      remove_place(S.places.first, place_at(S.places.first))
    end
    if freed and S.used < S.capacity then
      hint()
    end
  elseif S.policy == @READERS_FIRST@ then
    return grant_in_order('S', own) and grant_in_order('X', own)
  elseif S.policy == @WRITERS_FIRST@ then
    return grant_in_order('X', own) and grant_in_order('S', own)
  else
    grant_in_order(nil, own)
  end
end

-- Places -----------------------------------------------------------------------------------

-- The operation's place, if it has one: its ticket and itself.
local function own_place()
  if S.place_count == 0 then
    return nil
  end
  local ticket = ticket_of(S.session, S.raw_sequence)
  if ticket then
    return ticket, place_at(ticket)
  end
end
C.own_place, C.remove_place, C.grant_place = own_place, remove_place, grant_place

function C.drop_expired_place()
  local ticket, place = own_place()
  if ticket and place.ends <= S.now then
    remove_place(ticket, place)
    return true
  end
end

function C.refresh_place(listening)
  local _, place = own_place()
  if not place then
    return
  end
  place.ends = math.min(S.now + S.waiter_lease, place.till)
  S.places.earliest = math.min(S.places.earliest, place.ends)
  if place.away then
    place.away = false
    S.places.away = S.places.away - 1
  end
  place.listening, place.fresh, S.dirty = listening, true, true
  cover(@RETENTION@ + place.ends)
end

function C.enqueue(place)
  local q = queue()
  local ticket = q.next_ticket
  q.next_ticket = ticket + 1
  place.away, place.away_marks, place.fresh, place.arrived = false, 0, true, true
  append(ticket, place)
  S.dirty = true
  cover(@RETENTION@ + place.ends)
  return ticket
end

-- Drops every place past its end, wherever it stands, if there can be one.
function C.sweep_places()
  if S.place_count == 0 or S.now < S.places.earliest then
    return
  end
  local ticket, least = S.places.first, nil
  while ticket ~= NONE do
    local place = place_at(ticket)
    local after = place.after
    if place.ends <= S.now then
      remove_place(ticket, place)
    elseif not least or place.ends < least then
      least = place.ends
    end
    ticket = after
  end
  S.places.earliest, S.dirty = least or 0, true
end

function C.all_away()
  return S.place_count == S.places.away
end

-- Telling how things stand -----------------------------------------------------------------

-- Byte by byte: Lua's own comparison depends on the server's locale.
local function bytes_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The order of holders: by session, then by the number of the owner or the sequence.
local function holder_before(a, b)
  local by_session, other = string.sub(a, 1, 16), string.sub(b, 1, 16)
  if by_session ~= other then
    return bytes_before(by_session, other)
  end
  if S.kind == @SEMAPHORE@ then
    return struct.unpack('<d', a, 17) < struct.unpack('<d', b, 17)
  end
  return bytes_before(string.reverse(string.sub(a, 17)), string.reverse(string.sub(b, 17)))
end

local function change_in()
  local at = S.last_scan + @SCAN_INTERVAL@
  if S.tenure_count == 0 then
    at = S.now
  elseif S.earliest > S.now then
    at = S.earliest
  end
  return math.max(at - S.now, 1000)
end

function C.queued(ticket, place)
  local ahead = math.min(ticket - S.places.first, S.place_count - 1)
  local poll = math.min(math.floor(S.waiter_lease / 3), @MAX_POLL_INTERVAL@)
  local check_in = math.min(poll, change_in())
  if ahead >= @CHECK_EARLY@ then
    local half = math.floor(poll / 2)
    check_in = half + math.floor(ahead % @STAGGER_STEPS@ * half / @STAGGER_STEPS@)
  end
  return 'Q' .. struct.pack('<I4dd', ahead, check_in, math.max(place.ends - S.now, 0))
end

-- Who stands in the way; with many holders nobody looks.
function C.held()
  local out = 'H' .. struct.pack('<d', change_in())
  if S.tenure_count == 0 or S.tenure_count > @SCAN_FREELY@ then
    return out .. '\0'
  end
  local first, least
  each_tenure(function(holder, ends)
    if not first or ends < least or (ends == least and holder_before(holder, first)) then
      first, least = holder, ends
    end
  end)
  local label = tenure_of(first).label
  return out .. struct.pack('<BBc0', 1, #label, label)
end

function C.why_not(expired)
  if expired then
    return 'X'
  end
  local mark = mark_of(S.session)
  if mark and mark.sequence == S.sequence and mark.why ~= ' ' then
    return mark.why
  end
  return 'U'
end

function C.view(tenure)
  return struct.pack('<c1I4dd', mode_of(tenure), tenure.permits or 0, token_of(tenure),
    math.max(tenure.ends - S.now, 0))
end

-- All tenures that have not expired, each with its holder.
function C.live_tenures()
  local found = {}
  each_tenure(function(holder, ends, bytes)
    if ends > S.now then
      local tenure = S.T[holder] or parse_tenure(bytes)
      S.T[holder], tenure.holder = tenure, holder
      found[#found + 1] = tenure
    end
  end)
  return found
end

function C.by_holder(a, b)
  return holder_before(a.holder, b.holder)
end

function C.by_time_left(a, b)
  if a.ends ~= b.ends then
    return a.ends < b.ends
  elseif token_of(a) ~= token_of(b) then
    return token_of(a) < token_of(b)
  elseif a.label ~= b.label then
    return bytes_before(a.label, b.label)
  end
  return holder_before(a.holder, b.holder)
end

-- Calls `visit(place)` for every place that has not expired, in order.
function C.each_place(visit)
  local ticket = S.place_count > 0 and S.places.first or NONE
  while ticket ~= NONE do
    local place = place_at(ticket)
    if place.ends > S.now then
      visit(place)
    end
    ticket = place.after
  end
end

return C
