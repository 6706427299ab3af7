-- Methods for waiters, notifications, expiry, and the replies that depend on them.

{
  queue = function(S)
    local waiters = S.waiters
    if not waiters then
      waiters = {
        -- By ticket: waiters, the other end of a hole, and whether the field changes; then the
        -- ticket of each operation, and the operations that are gone.
        by_ticket = {}, holes = {}, changed = {}, tickets = {}, gone = {},
        next_ticket = 1, first = @NONE@, first_end = 0, unreachable = 0, earliest = 0,
      }
      S.waiters = waiters
    end
    return waiters
  end,

  -- Reads the waiter at position `at`. Returns the next position too. The waiter keeps its packed
  -- bytes until it changes.
  read_waiter = function(S, from, at)
    local session, raw, owner, mode, permits, floor, lease, ends, wait_until, flags,
      unreachable_marks, label, next = struct.unpack('<c16c8c8c1I4ddddBBBc0', from, at)
    return {
      session = session, raw = raw, owner = owner, mode = mode, permits = permits, floor = floor,
      lease = lease, ends = ends, wait_until = wait_until,
      listening = flags % 2 == @LISTENING@, unreachable = flags >= @UNREACHABLE@,
      unreachable_marks = unreachable_marks,
      label = label, bytes = string.sub(from, at, next - 1), fresh = false, arrived = false,
    }, next
  end,

  write_waiter = function(S, waiter)
    if waiter.bytes then
      return waiter.bytes
    end
    local flags = (waiter.listening and @LISTENING@ or 0)
      + (waiter.unreachable and @UNREACHABLE@ or 0)
    return struct.pack('<c16c8c8c1I4ddddBBBc0', waiter.session, waiter.raw, waiter.owner,
      waiter.mode, waiter.permits, waiter.floor, waiter.lease, waiter.ends, waiter.wait_until,
      flags, waiter.unreachable_marks, #waiter.label, waiter.label)
  end,

  -- The waiter with this ticket; none if the ticket is in a hole.
  waiter_at = function(S, ticket)
    local waiter = S.waiters.by_ticket[ticket]
    if waiter == nil and S.form == 'hash' then
      local field = struct.pack('<c1d', 'w', ticket)
      waiter = S:keep_waiter(ticket, redis.call('HGET', S.key, field))
    end
    return waiter
  end,

  ticket_of = function(S, session, raw)
    local name = session .. raw
    local ticket = S.waiters.tickets[name]
    if ticket == nil and S.form == 'hash' then
      local bytes = redis.call('HGET', S.key, 'q' .. name)
      ticket = bytes and struct.unpack('<d', bytes)
      S.waiters.tickets[name] = ticket
    end
    return ticket
  end,

  -- Refuses tickets that are not in order. A walk over them might never end, and the server stops a
  -- script for nobody.
  check_order = function(_, first, second)
    if not (first >= 0 and second >= first and second < @MAX_TICKET@) then
      error({ server = 'ERR the queue is damaged' })
    end
  end,

  -- The ticket after the hole that begins here.
  ticket_after_hole = function(S, from)
    local to = S.waiters.holes[from]
    S:check_order(from, to)
    return to + 1
  end,

  -- The ticket of the next waiter, or @NONE@.
  ticket_after = function(S, ticket)
    local q, after = S.waiters, ticket + 1
    if after < q.next_ticket and not S:waiter_at(after) then
      after = S:ticket_after_hole(after)
    end
    return after < q.next_ticket and after or @NONE@
  end,

  -- Makes a hole of these tickets, or forgets it.
  set_hole = function(S, from, to, is_hole)
    local q = S.waiters
    q.by_ticket[from], q.holes[from], q.changed[from] = false, is_hole and to, true
    q.by_ticket[to], q.holes[to], q.changed[to] = false, is_hole and from, true
  end,

  -- Removes a waiter. Returns the ticket of the next one, or @NONE@.
  remove_waiter = function(S, ticket, waiter)
    local q, name = S.waiters, waiter.session .. waiter.raw
    local after = S:ticket_after(ticket)
    local from, to = ticket, (after == @NONE@ and q.next_ticket or after) - 1
    q.by_ticket[ticket], q.changed[ticket] = false, true
    q.tickets[name], q.gone[name] = false, true
    if to > ticket then
      S:set_hole(ticket + 1, to, false)
    end
    if ticket == q.first then
      q.first, q.first_end = after, 0
    else
      if not S:waiter_at(ticket - 1) then
        from = q.holes[ticket - 1]
        S:set_hole(from, ticket - 1, false)
      end
      S:set_hole(from, to, true)
    end
    if waiter.unreachable then
      q.unreachable = q.unreachable - 1
    end
    S.waiter_count = S.waiter_count - 1
    S.dirty, S.shrunk = true, true
    return after
  end,

  -- Adds a waiter at the end of the queue.
  append = function(S, ticket, waiter)
    local q = S:queue()
    q.by_ticket[ticket], q.tickets[waiter.session .. waiter.raw] = waiter, ticket
    if S.waiter_count == 0 then
      q.first, q.earliest = ticket, waiter.ends
    end
    q.earliest = math.min(q.earliest, waiter.ends)
    S.waiter_count = S.waiter_count + 1
  end,

  -- A packed string has the waiters in order, each after its ticket, then the next ticket.
  unpack_waiters = function(S, count, at)
    local q, expected = S:queue(), nil
    q.next_ticket = struct.unpack('<d', S.stored, #S.stored - 7)
    for i = 1, count + 1 do
      local ticket, waiter = struct.unpack('<d', S.stored, i > count and #S.stored - 7 or at)
      S:check_order(expected or 0, ticket)
      if expected and expected < ticket then
        S:set_hole(expected, ticket - 1, true)
      end
      if i <= count then
        waiter, at = S:read_waiter(S.stored, at + 8)
        S:append(ticket, waiter)
        q.unreachable = q.unreachable + (waiter.unreachable and 1 or 0)
        expected = ticket + 1
      end
    end
  end,

  pack_waiters = function(S)
    local out = {}
    local ticket = S.waiters.first
    while ticket ~= @NONE@ do
      out[#out + 1] = struct.pack('<d', ticket) .. S:write_waiter(S:waiter_at(ticket))
      ticket = S:ticket_after(ticket)
    end
    out[#out + 1] = struct.pack('<d', S.waiters.next_ticket)
    return table.concat(out)
  end,

  -- When Redis expires the key, in ms.
  expire_at = function(S)
    return math.ceil(S.stored_end / 1000) + @DELETED_AFTER_MS@
  end,

  channel_of = function(S, session)
    local key, to = S.key, session
    return @CHANNEL@
  end,

  -- Whether somebody listens to the session. Only the count before the writes is used: a message that
  -- has left can't be taken back.
  is_reachable = function(S, session)
    S.reach = S.reach or {}
    if S.reach[session] == nil then
      local channel = S:channel_of(session)
      S.reach[session] = @LISTENS@
    end
    return S.reach[session]
  end,

  -- Keeps a message until the state is written.
  notify = function(S, to, body)
    S.pending = S.pending or {}
    S.pending[to] = (S.pending[to] or '') .. body
  end,

  publish = function(S, to, body)
    local channel, message = S:channel_of(to), struct.pack('<dc8', S.now, S.clock_id) .. body
    if @SHARD_CHANNELS@ and string.byte(body) == @REVOCATION@ then
      -- A holder that hasn't waited doesn't listen to the channel of the key. Revocations are rare.
      redis.pcall('PUBLISH',
        string.match(S.key, '^[^{]*') .. 'c:' .. string.sub(channel, -16), message)
    end
    redis.pcall(@PUBLISH@, channel, message)
  end,

  -- Calls `visit(holder_id, holder_end, bytes)` for each holder. `bytes` is the packed holder of a
  -- hash.
  each_holder = function(S, visit)
    if S.form == 'hash' then
      return S:each_holder_in_hash(visit)
    end
    for holder_id, holder in pairs(S.holders) do
      visit(holder_id, holder.ends)
    end
  end,

  -- Drops all expired holders if a scan is due (rule 4).
  scan = function(S)
    if S.holder_count > @SCAN_FREELY@ and S.now < S.last_scan + @SCAN_INTERVAL@ then
      return
    end
    local expired, least = {}, nil
    S:each_holder(function(holder_id, holder_end, bytes)
      if holder_end <= S.now then
        expired[#expired + 1] = holder_id
        S.holders[holder_id] = S.holders[holder_id] or S:parse_holder(bytes)
      elseif not least or holder_end < least then
        least = holder_end
      end
    end)
    for i = 1, #expired do
      S:remove_holder(expired[i], S.holders[expired[i]])
    end
    S.earliest, S.last_scan, S.dirty = least or 0, S.now, true
  end,

  -- The end of an offer that this waiter gets now (rule 10).
  offer_end = function(S, waiter)
    local now, lease, waiter_end, waiter_lease = S.now, waiter.lease, waiter.ends, S.waiter_lease
    return @OFFER_END@
  end,

  -- Turns a waiter into an offer. Returns the ticket of the next waiter, and the holder.
  grant_waiter = function(S, ticket, waiter)
    local after = S:remove_waiter(ticket, waiter)
    return after, S:grant(waiter.session, waiter.raw, waiter.owner, waiter.mode, waiter.permits,
      waiter.label, waiter.floor, S:offer_end(waiter))
  end,

  -- Makes an offer to a waiter, or marks it as unreachable if nobody listens (rule 9). Returns the
  -- ticket of the next waiter.
  offer = function(S, ticket, waiter)
    local may_mark = waiter.listening and waiter.unreachable_marks < @MAX_UNREACHABLE_MARKS@
    if may_mark and not S:is_reachable(waiter.session) then
      waiter.unreachable, waiter.unreachable_marks = true, waiter.unreachable_marks + 1
      waiter.fresh, waiter.bytes = true, false
      S.waiters.unreachable = S.waiters.unreachable + 1
      S.dirty = true
      return S:ticket_after(ticket)
    end
    local after, holder = S:grant_waiter(ticket, waiter)
    if waiter.listening then
      local body = 'G' .. waiter.raw .. struct.pack('<dd', S.token, holder.ends - S.now)
      S:notify(waiter.session, body)
    end
    return after
  end,

  -- Grants waiters in ticket order up to the first that does not fit.
  grant_in_order = function(S, own)
    local ticket, budget = S.waiters.first, @SETTLE_BUDGET@
    while ticket ~= @NONE@ do
      local waiter = S:waiter_at(ticket)
      if waiter.ends <= S.now then
        ticket = S:remove_waiter(ticket, waiter)
      elseif waiter.unreachable then
        ticket = S:ticket_after(ticket)
      elseif budget == 0 or not S:fits(waiter.mode, waiter.permits) then
        return
      else
        budget = budget - 1
        if own and waiter.session == S.session and waiter.raw == S.raw_sequence
          and waiter.owner == S.owner
        then
          ticket = S:grant_waiter(ticket, waiter)
        else
          ticket = S:offer(ticket, waiter)
        end
      end
    end
  end,

  -- The ticket and the waiter of the operation, if it waits. Call this only if somebody does.
  own_waiter = function(S)
    local ticket = S:ticket_of(S.session, S.raw_sequence)
    if ticket then
      return ticket, S:waiter_at(ticket)
    end
  end,

  -- Call this only if somebody waits.
  drop_expired_waiter = function(S)
    local ticket, waiter = S:own_waiter()
    if ticket and waiter.ends <= S.now then
      S:remove_waiter(ticket, waiter)
      return true
    end
  end,

  -- Call this only if somebody waits.
  refresh_waiter = function(S, listening)
    local _, waiter = S:own_waiter()
    if not waiter then
      return
    end
    waiter.ends = math.min(S.now + S.waiter_lease, waiter.wait_until)
    S.waiters.earliest = math.min(S.waiters.earliest, waiter.ends)
    if waiter.unreachable then
      waiter.unreachable = false
      S.waiters.unreachable = S.waiters.unreachable - 1
    end
    waiter.listening, waiter.fresh, waiter.bytes, S.dirty = listening, true, false, true
    S:cover(@RETENTION@ + waiter.ends)
  end,

  enqueue = function(S, waiter)
    local q = S:queue()
    local ticket = q.next_ticket
    q.next_ticket = ticket + 1
    waiter.unreachable, waiter.unreachable_marks = false, 0
    waiter.fresh, waiter.arrived = true, true
    S:append(ticket, waiter)
    S.dirty = true
    S:cover(@RETENTION@ + waiter.ends)
    return ticket
  end,

  -- Compares byte by byte, because Lua's comparison of strings depends on the server's locale.
  bytes_before = function(S, a, b)
    for i = 1, math.min(#a, #b) do
      local x, y = string.byte(a, i), string.byte(b, i)
      if x ~= y then
        return x < y
      end
    end
    return #a < #b
  end,

  -- The order of holder ids: by session, then by owner or sequence as a number.
  holder_before = function(S, a, b)
    local session, other = string.sub(a, 1, 16), string.sub(b, 1, 16)
    if session ~= other then
      return S:bytes_before(session, other)
    end
    if S.kind == @SEMAPHORE@ then
      return struct.unpack('<d', a, 17) < struct.unpack('<d', b, 17)
    end
    return S:bytes_before(string.reverse(string.sub(a, 17)), string.reverse(string.sub(b, 17)))
  end,

  retry_after = function(S)
    local at = S.last_scan + @SCAN_INTERVAL@
    if S.holder_count == 0 then
      at = S.now
    elseif S.earliest > S.now then
      at = S.earliest
    end
    return math.max(at - S.now, 1000)
  end,

  queued = function(S, ticket, waiter)
    local ahead = math.min(ticket - S.waiters.first, S.waiter_count - 1)
    local waiter_lease, retry_after, session = S.waiter_lease, S:retry_after(), waiter.session
    @POLL_AFTER@
    return 'Q' .. struct.pack('<I4dd', ahead, poll_after, math.max(waiter.ends - S.now, 0))
  end,

  -- The reply for a key that is held. With many holders it names none of them.
  contention = function(S)
    local out = 'H' .. struct.pack('<d', S:retry_after())
    if S.holder_count == 0 or S.holder_count > @SCAN_FREELY@ then
      return out .. '\0'
    end
    local first, least
    S:each_holder(function(holder_id, holder_end)
      if not first or holder_end < least
        or (holder_end == least and S:holder_before(holder_id, first))
      then
        first, least = holder_id, holder_end
      end
    end)
    local label = S:holder_of(first).label
    return out .. struct.pack('<BBc0', 1, #label, label)
  end,

  reason = function(S, expired)
    if expired then
      return @REASON_EXPIRED@
    end
    local watermark = S:watermark_of(S.session)
    if watermark and watermark.sequence == S.sequence
      and watermark.reason ~= @REASON_NONE@
    then
      return watermark.reason
    end
    return @REASON_UNKNOWN@
  end,

  status = function(S, holder)
    return struct.pack('<c1I4dd', S:mode_of(holder), holder.permits or 0, S:token_of(holder),
      math.max(holder.ends - S.now, 0))
  end,
}
