-- Methods for a lock with waiters, notifications, or something expired.

{
  -- The queue ---------------------------------------------------------------------------------

  queue = function(S)
    local places = S.places
    if not places then
      places = {
        by_ticket = {}, tickets = {},
        next_ticket = 1, first = @NONE@, last = @NONE@, away = 0, earliest = 0,
      }
      S.places = places
    end
    return places
  end,

  -- Reads a place at position `at`; returns the next position too. Keeps its bytes until the place
  -- changes.
  read_place = function(S, from, at)
    local session, raw, owner, mode, permits, floor, ends, till, flags, away_marks, label, next =
      struct.unpack('<c16c8c8c1I4dddBBBc0', from, at)
    return {
      session = session, raw = raw, owner = owner, mode = mode, permits = permits, floor = floor,
      ends = ends, till = till, listening = flags % 2 == @LISTENING@, away = flags >= @AWAY@,
      away_marks = away_marks, label = label, bytes = string.sub(from, at, next - 1),
      before = @NONE@, after = @NONE@, fresh = false, arrived = false,
    }, next
  end,

  write_place = function(S, place)
    if place.bytes then
      return place.bytes
    end
    local flags = (place.listening and @LISTENING@ or 0) + (place.away and @AWAY@ or 0)
    return struct.pack('<c16c8c8c1I4dddBBBc0', place.session, place.raw, place.owner, place.mode,
      place.permits, place.floor, place.ends, place.till, flags, place.away_marks, #place.label,
      place.label)
  end,

  place_at = function(S, ticket)
    local place = S.places.by_ticket[ticket]
    if place == nil and S.form == 'hash' then
      place = S:load_place(ticket)
    end
    return place
  end,

  ticket_of = function(S, who, raw)
    local name = who .. raw
    local ticket = S.places.tickets[name]
    if ticket == nil and S.form == 'hash' then
      ticket = S:load_ticket(name)
    end
    return ticket
  end,

  -- Puts a place at the end of the queue, under its ticket.
  append = function(S, ticket, place)
    local q = S:queue()
    place.before, place.after = q.last, @NONE@
    if q.last == @NONE@ then
      q.first = ticket
    else
      local before = S:place_at(q.last)
      before.after, before.fresh = ticket, true
    end
    q.last = ticket
    q.by_ticket[ticket] = place
    q.tickets[place.session .. place.raw] = ticket
    if q.earliest > place.ends or S.place_count == 0 then
      q.earliest = place.ends
    end
    S.place_count = S.place_count + 1
  end,

  remove_place = function(S, ticket, place)
    local q = S.places
    if place.before == @NONE@ then
      q.first = place.after
    else
      local before = S:place_at(place.before)
      before.after, before.fresh = place.after, true
    end
    if place.after == @NONE@ then
      q.last = place.before
    else
      local after = S:place_at(place.after)
      after.before, after.fresh = place.before, true
    end
    local absent = nil
    if S.form == 'hash' then
      absent = false
      S.gone_places[ticket] = place.session .. place.raw
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
  end,

  -- A packed string has the places in order, each after its ticket, and the next ticket last.
  unpack_places = function(S, count, at)
    local q = S:queue()
    q.next_ticket = struct.unpack('<d', S.stored, #S.stored - 7)
    for _ = 1, count do
      local ticket, place
      ticket, at = struct.unpack('<d', S.stored, at)
      place, at = S:read_place(S.stored, at)
      S:append(ticket, place)
      if place.away then
        q.away = q.away + 1
      end
    end
  end,

  pack_places = function(S)
    local out = {}
    local ticket = S.places.first
    while ticket ~= @NONE@ do
      local place = S:place_at(ticket)
      out[#out + 1] = struct.pack('<d', ticket) .. S:write_place(place)
      ticket = place.after
    end
    out[#out + 1] = struct.pack('<d', S.places.next_ticket)
    return table.concat(out)
  end,

  -- Publishing --------------------------------------------------------------------------------

  expiry = function(S)
    return math.ceil(S.stored_end / 1000) + 1000
  end,

  -- Makes a write that changes nothing, and fails if the command can't write.
  make_sure = function(S)
    if S.wrote then
      return
    end
    if not S.strict then
      S:write('PEXPIREAT', S.key, S:expiry())
    elseif S.form == 'hash' or S.over then
      S:write('HSET', S.key, 'head', S.stored)
    elseif S.stored then
      S:write('SET', S.key, S.stored, 'KEEPTTL')
    end
  end,

  publish = function(S, to, body)
    local prefix = string.match(S.key, '^[^{]*')
    local channel = prefix .. 'c:' .. string.sub(redis.sha1hex(to), 1, 16)
    return redis.pcall('PUBLISH', channel, struct.pack('<d', S.now) .. body)
  end,

  -- Queues a message to publish once the state is written, unless nobody listens.
  tell = function(S, to, body)
    S.pending = S.pending or {}
    S.pending[to] = (S.pending[to] or '') .. body
  end,

  -- Publishes a message and returns whether anybody listens. Only the first message of a step to a
  -- session is published at once; later ones go together at the end of the step.
  heard = function(S, to, body)
    if not @PUSH@ then
      return true
    end
    S.reach = S.reach or {}
    if S.reach[to] == nil then
      S:make_sure()
      local before = S.pending and S.pending[to] or ''
      local listeners = S:publish(to, before .. body)
      -- An error means: unknown, which counts as listening.
      S.reach[to] = type(listeners) == 'table' or listeners > 0
      if S.pending then
        S.pending[to] = nil
      end
    elseif S.reach[to] then
      S:tell(to, body)
    end
    return S.reach[to]
  end,

  tell_the_rest = function(S)
    for to, body in pairs(S.pending) do
      if @PUSH@ and not (S.reach and S.reach[to] == false) then
        S:publish(to, body)
      end
    end
  end,

  -- Settling ----------------------------------------------------------------------------------

  -- Calls `visit(holder, ends)` for every tenure, without loading all of them at once.
  each_tenure = function(S, visit)
    if S.form == 'hash' then
      return S:each_tenure_in_hash(visit)
    end
    for holder, tenure in pairs(S.T) do
      visit(holder, tenure.ends)
    end
  end,

  -- Drops all expired tenures if a scan is due; returns whether there were any.
  scan = function(S)
    if S.tenure_count > @SCAN_FREELY@ and S.now < S.last_scan + @SCAN_INTERVAL@ then
      return false
    end
    local expired, least = {}, nil
    S:each_tenure(function(holder, ends, bytes)
      if ends <= S.now then
        expired[#expired + 1] = holder
        S.T[holder] = S.T[holder] or S:parse_tenure(bytes)
      elseif not least or ends < least then
        least = ends
      end
    end)
    for i = 1, #expired do
      S:remove_tenure(expired[i], S.T[expired[i]])
    end
    S.earliest, S.last_scan, S.dirty = least or 0, S.now, true
    return #expired > 0
  end,

  -- Turns a place into a claim, which ends where the place would have.
  grant_place = function(S, ticket, place)
    S:remove_place(ticket, place)
    S:grant(place.session, place.raw, place.owner, place.mode, place.permits, place.label,
      place.floor, place.ends)
  end,

  -- The message for a waiter whose place is about to be granted.
  claim_message = function(S, place)
    local holder = place.session .. (S.kind == @SEMAPHORE@ and place.raw or place.owner)
    local tenure, others = S:tenure_of(holder), S.tenure_count
    if tenure and tenure.ends <= S.now then
      tenure, others = nil, others - 1
    end
    local number, ends = S.token, place.ends
    if tenure then
      ends = tenure.flags % 2 == @REVOKED@ and tenure.ends or math.max(ends, tenure.ends)
    elseif not S:joins(place.mode, place.floor, others) then
      number = S:token_after(place.floor)
    end
    return 'G' .. place.raw .. struct.pack('<dd', number, ends - S.now)
  end,

  -- Grants a place if its waiter receives the message, and marks it away otherwise.
  offer = function(S, ticket, place)
    if not place.listening then
      return S:grant_place(ticket, place)
    end
    local message = S:claim_message(place)
    if place.away_marks >= @MAX_AWAY_MARKS@ then
      S:tell(place.session, message)
    elseif not S:heard(place.session, message) then
      place.away, place.away_marks = true, place.away_marks + 1
      place.fresh, place.bytes = true, false
      S.places.away = S.places.away + 1
      S.dirty = true
      return
    end
    S:grant_place(ticket, place)
  end,

  -- Grants places of one mode, or of any, in the order of their tickets until one does not fit.
  -- Returns whether the end of the queue was reached.
  grant_in_order = function(S, mode, own)
    local ticket = S.places.first
    while ticket ~= @NONE@ do
      local place = S:place_at(ticket)
      local after = place.after
      if place.ends <= S.now then
        S:remove_place(ticket, place)
      elseif not place.away and (not mode or place.mode == mode) then
        if S.budget == 0 or not S:fits(place.mode, place.permits) then
          return false
        end
        S.budget = S.budget - 1
        if own and place.session == S.session and place.raw == S.raw_sequence
          and place.owner == S.owner
        then
          S:grant_place(ticket, place)
        else
          S:offer(ticket, place)
        end
      end
      ticket = after
    end
    return true
  end,

  -- Wakes the first waiter that listens: it may try.
  hint = function(S)
    local ticket = S.places.first
    while ticket ~= @NONE@ do
      local place = S:place_at(ticket)
      if place.ends > S.now and place.listening then
        if S.budget == 0 then
          return
        end
        S.budget = S.budget - 1
        if S:heard(place.session, 'H' .. place.raw) then
          return
        end
      end
      ticket = place.after
    end
  end,

  settle_queue = function(S, freed, own)
    S.budget = @SETTLE_BUDGET@
    if S.policy == @BARGING@ then
      while S.places.first ~= @NONE@ and S:place_at(S.places.first).ends <= S.now do
        S:remove_place(S.places.first, S:place_at(S.places.first))
      end
      if freed and S.used < S.capacity then
        S:hint()
      end
    elseif S.policy == @READERS_FIRST@ then
      return S:grant_in_order('S', own) and S:grant_in_order('X', own)
    elseif S.policy == @WRITERS_FIRST@ then
      return S:grant_in_order('X', own) and S:grant_in_order('S', own)
    else
      S:grant_in_order(nil, own)
    end
  end,

  -- Places ------------------------------------------------------------------------------------

  -- The ticket and the place of the operation, if it waits.
  own_place = function(S)
    if S.place_count == 0 then
      return nil
    end
    local ticket = S:ticket_of(S.session, S.raw_sequence)
    if ticket then
      return ticket, S:place_at(ticket)
    end
  end,

  drop_expired_place = function(S)
    local ticket, place = S:own_place()
    if ticket and place.ends <= S.now then
      S:remove_place(ticket, place)
      return true
    end
  end,

  refresh_place = function(S, listening)
    local _, place = S:own_place()
    if not place then
      return
    end
    place.ends = math.min(S.now + S.waiter_lease, place.till)
    S.places.earliest = math.min(S.places.earliest, place.ends)
    if place.away then
      place.away = false
      S.places.away = S.places.away - 1
    end
    place.listening, place.fresh, place.bytes, S.dirty = listening, true, false, true
    S:cover(@RETENTION@ + place.ends)
  end,

  enqueue = function(S, place)
    local q = S:queue()
    local ticket = q.next_ticket
    q.next_ticket = ticket + 1
    place.away, place.away_marks, place.fresh, place.arrived = false, 0, true, true
    S:append(ticket, place)
    S.dirty = true
    S:cover(@RETENTION@ + place.ends)
    return ticket
  end,

  all_away = function(S)
    return S.place_count == S.places.away
  end,

  -- Replies -----------------------------------------------------------------------------------

  -- Byte by byte: Lua's own comparison depends on the server's locale.
  bytes_before = function(S, a, b)
    for i = 1, math.min(#a, #b) do
      local x, y = string.byte(a, i), string.byte(b, i)
      if x ~= y then
        return x < y
      end
    end
    return #a < #b
  end,

  -- The order of holders: by session, then by the number of the owner or the sequence.
  holder_before = function(S, a, b)
    local by_session, other = string.sub(a, 1, 16), string.sub(b, 1, 16)
    if by_session ~= other then
      return S:bytes_before(by_session, other)
    end
    if S.kind == @SEMAPHORE@ then
      return struct.unpack('<d', a, 17) < struct.unpack('<d', b, 17)
    end
    return S:bytes_before(string.reverse(string.sub(a, 17)), string.reverse(string.sub(b, 17)))
  end,

  change_in = function(S)
    local at = S.last_scan + @SCAN_INTERVAL@
    if S.tenure_count == 0 then
      at = S.now
    elseif S.earliest > S.now then
      at = S.earliest
    end
    return math.max(at - S.now, 1000)
  end,

  queued = function(S, ticket, place)
    local ahead = math.min(ticket - S.places.first, S.place_count - 1)
    local waiter_lease, change_in = S.waiter_lease, S:change_in()
    @CHECK_IN@
    return 'Q' .. struct.pack('<I4dd', ahead, check_in, math.max(place.ends - S.now, 0))
  end,

  -- Reports who holds the key; with many holders, nobody.
  held = function(S)
    local out = 'H' .. struct.pack('<d', S:change_in())
    if S.tenure_count == 0 or S.tenure_count > @SCAN_FREELY@ then
      return out .. '\0'
    end
    local first, least
    S:each_tenure(function(holder, ends)
      if not first or ends < least or (ends == least and S:holder_before(holder, first)) then
        first, least = holder, ends
      end
    end)
    local label = S:tenure_of(first).label
    return out .. struct.pack('<BBc0', 1, #label, label)
  end,

  why_not = function(S, expired)
    if expired then
      return 'X'
    end
    local mark = S:mark_of(S.session)
    if mark and mark.sequence == S.sequence and mark.why ~= ' ' then
      return mark.why
    end
    return 'U'
  end,

  view = function(S, tenure)
    return struct.pack('<c1I4dd', S:mode_of(tenure), tenure.permits or 0, S:token_of(tenure),
      math.max(tenure.ends - S.now, 0))
  end,
}
