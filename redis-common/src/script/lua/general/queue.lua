-- Methods for waiters, notifications and expiry, and those that read and write a hash.

{
  -- A table of the waiter with this ticket, or nil if nobody has it.
  waiter_at = function(S, ticket)
    local bytes = S:field(struct.pack('<c1d', 'w', ticket))
    if not bytes or #bytes == 8 then
      return nil
    end
    local session, raw, owner, mode, permits, floor, lease, ends, wait_until, flags, marks, label =
      struct.unpack('<c16c8c8c1I4ddddBBBc0', bytes)
    return {
      ticket = ticket, session = session, raw = raw, owner = owner, mode = mode, permits = permits,
      floor = floor, lease = lease, ends = ends, wait_until = wait_until, flags = flags, marks = marks,
      label = label,
    }
  end,

  put_waiter = function(S, waiter)
    S:put(struct.pack('<c1d', 'w', waiter.ticket), struct.pack('<c16c8c8c1I4ddddBBBc0',
      waiter.session, waiter.raw, waiter.owner, waiter.mode, waiter.permits, waiter.floor,
      waiter.lease, waiter.ends, waiter.wait_until, waiter.flags, waiter.marks, #waiter.label,
      waiter.label))
  end,

  -- The waiter of the operation, if it waits. Call this only if somebody does.
  own_waiter = function(S)
    local bytes = S:field('q' .. S.session .. S.raw_sequence)
    return bytes and S:waiter_at(struct.unpack('<d', bytes))
  end,

  -- If this ticket is one end of a hole, the other end.
  hole_at = function(S, ticket)
    local bytes = S:field(struct.pack('<c1d', 'w', ticket))
    return #bytes == 8 and struct.unpack('<d', bytes)
  end,

  -- Makes a hole of these tickets, or forgets it.
  put_hole = function(S, from, to, is_hole)
    S:put(struct.pack('<c1d', 'w', from), is_hole and struct.pack('<d', to))
    S:put(struct.pack('<c1d', 'w', to), is_hole and struct.pack('<d', from))
  end,

  -- Refuses tickets that are not in order. A walk over them might never end, and the server stops a
  -- script for nobody.
  check_order = function(_, first, second)
    if not (first >= 0 and second >= first and second < @MAX_TICKET@) then
      error({ server = 'ERR the queue is damaged' })
    end
  end,

  -- The ticket of the next waiter, or @NONE@.
  ticket_after = function(S, ticket)
    local after = ticket + 1
    local to = after < S.next_ticket and S:hole_at(after)
    if to then
      S:check_order(after, to)
      after = to + 1
    end
    return after < S.next_ticket and after or @NONE@
  end,

  -- Removes a waiter. Returns the ticket of the next one, or @NONE@.
  remove_waiter = function(S, waiter)
    local ticket = waiter.ticket
    local after = S:ticket_after(ticket)
    -- The tickets of the hole that it leaves, together with its neighbours.
    local from, to = ticket, (after == @NONE@ and S.next_ticket or after) - 1
    S:put(struct.pack('<c1d', 'w', ticket), false)
    S:put('q' .. waiter.session .. waiter.raw, false)
    if to > ticket then
      S:put_hole(ticket + 1, to, false)
    end
    if ticket == S.first_ticket then
      S.first_ticket, S.first_end = after, 0
    else
      local before = S:hole_at(ticket - 1)
      if before then
        S:check_order(before, ticket)
        from = before
        S:put_hole(from, ticket - 1, false)
      end
      S:put_hole(from, to, true)
    end
    if waiter.flags >= @UNREACHABLE@ then
      S.unreachable = S.unreachable - 1
    end
    S.waiter_count = S.waiter_count - 1
    if S.waiter_count == 0 then
      S.waiters_end = S.now
    end
    return after
  end,

  -- Adds a waiter at the end of the queue.
  enqueue = function(S, waiter)
    local ticket = S.next_ticket
    waiter.ticket, S.next_ticket, S.arrived = ticket, ticket + 1, true
    S:put_waiter(waiter)
    S:put('q' .. waiter.session .. waiter.raw, struct.pack('<d', ticket))
    if S.waiter_count == 0 then
      S.first_ticket, S.waiters_end = ticket, waiter.ends
    end
    S.waiters_end = math.min(S.waiters_end, waiter.ends)
    S.waiter_count = S.waiter_count + 1
    S:cover(waiter.ends + @RETENTION@)
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

  -- Reads these fields, at most a chunk of them.
  fetch = function(S, names)
    local wanted = {}
    for _, name in ipairs(names) do
      if S.fields[name] == nil and not S.complete then
        wanted[#wanted + 1] = name
      end
    end
    local values = #wanted > 0 and redis.call('HMGET', S.key, unpack(wanted)) or wanted
    for i, name in ipairs(wanted) do
      S.fields[name] = values[i]
    end
  end,

  -- The slots of a hash are numbered from 1 without gaps: if a holder is removed, the last one takes its
  -- slot. The holders of a string get slots when it becomes a hash.
  remove_slot = function(S, slot)
    local last = string.format('s%.0f', S.holder_count)
    if slot ~= S.holder_count then
      local last_id = S:field(last)
      local bytes = S:field('h' .. last_id)
      S:put('h' .. last_id, struct.pack('<I4', slot) .. string.sub(bytes, 5))
      S:put(string.format('s%.0f', slot), last_id)
    end
    S:put(last, false)
  end,

  -- Calls `visit(holder_id, holder_end)` for each holder.
  each_holder = function(S, visit)
    if S.complete then
      for name, value in pairs(S.fields) do
        if value and string.byte(name) == @HOLDER@ then
          visit(string.sub(name, 2), struct.unpack('<d', value, 5))
        end
      end
      return
    end
    for from = 1, S.holder_count, @CHUNK@ do
      local names = {}
      for slot = from, math.min(from + @CHUNK@ - 1, S.holder_count) do
        names[#names + 1] = string.format('s%.0f', slot)
      end
      S:fetch(names)
      for i, name in ipairs(names) do
        names[i] = 'h' .. S.fields[name]
      end
      S:fetch(names)
      for _, name in ipairs(names) do
        visit(string.sub(name, 2), struct.unpack('<d', S.fields[name], 5))
      end
    end
  end,

  -- Drops all expired holders if a scan is due (rule 4).
  scan = function(S)
    if S.holder_count > @SCAN_FREELY@ and S.now < S.last_scan + @SCAN_INTERVAL@ then
      return
    end
    local expired, least = {}, nil
    S:each_holder(function(holder_id, holder_end)
      if holder_end <= S.now then
        expired[#expired + 1] = holder_id
      elseif not least or holder_end < least then
        least = holder_end
      end
    end)
    for _, holder_id in ipairs(expired) do
      S:remove_holder(S:holder_of(holder_id))
    end
    S.earliest, S.last_scan, S.dirty = least or 0, S.now, true
  end,

  offer_end = @OFFER_END@,

  poll_after = @POLL_AFTER@,

  -- Turns a waiter into an offer. Returns the ticket of the next waiter, and the holder.
  grant_waiter = function(S, waiter)
    local after = S:remove_waiter(waiter)
    return after, S:grant(waiter.session, waiter.raw, waiter.owner, waiter.mode, waiter.permits,
      waiter.label, waiter.floor,
      S.offer_end(S.now, waiter.lease, waiter.ends, S.waiter_lease))
  end,

  -- Makes an offer to a waiter, or marks it as unreachable if nobody listens (rule 9). Returns the
  -- ticket of the next waiter.
  offer = function(S, waiter)
    local listens = waiter.flags % 2 == @LISTENING@
    if listens and waiter.marks < @MAX_UNREACHABLE_MARKS@ and not S:is_reachable(waiter.session) then
      waiter.flags, waiter.marks = waiter.flags + @UNREACHABLE@, waiter.marks + 1
      S:put_waiter(waiter)
      S.unreachable = S.unreachable + 1
      return S:ticket_after(waiter.ticket)
    end
    local after, holder = S:grant_waiter(waiter)
    if listens then
      local body = 'G' .. waiter.raw .. struct.pack('<dd', S.token, holder.ends - S.now)
      S:notify(waiter.session, body)
    end
    return after
  end,

  -- Grants waiters in ticket order up to the first that does not fit.
  grant_in_order = function(S, own)
    local ticket, budget = S.first_ticket, @SETTLE_BUDGET@
    while ticket ~= @NONE@ do
      local waiter = S:waiter_at(ticket)
      if waiter.ends <= S.now then
        ticket = S:remove_waiter(waiter)
      elseif waiter.flags >= @UNREACHABLE@ then
        ticket = S:ticket_after(ticket)
      elseif budget == 0 or not S:fits(waiter.mode, waiter.permits) then
        return
      else
        budget = budget - 1
        if own and waiter.session == S.session and waiter.raw == S.raw_sequence
          and waiter.owner == S.owner
        then
          ticket = S:grant_waiter(waiter)
        else
          ticket = S:offer(waiter)
        end
      end
    end
  end,

  -- Call this only if somebody waits.
  refresh_waiter = function(S, listening)
    local waiter = S:own_waiter()
    if not waiter then
      return
    end
    waiter.ends = math.min(S.now + S.waiter_lease, waiter.wait_until)
    S.waiters_end = math.min(S.waiters_end, waiter.ends)
    if waiter.flags >= @UNREACHABLE@ then
      S.unreachable = S.unreachable - 1
    end
    waiter.flags = listening and @LISTENING@ or 0
    S:put_waiter(waiter)
    S:cover(waiter.ends + @RETENTION@)
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

  queued = function(S, waiter)
    local ahead = math.min(waiter.ticket - S.first_ticket, S.waiter_count - 1)
    local poll_after = S.poll_after(S.waiter_lease, ahead, S:retry_after(), waiter.session)
    return 'Q' .. struct.pack('<I4dd', ahead, poll_after, math.max(waiter.ends - S.now, 0))
  end,

  reason = function(S, expired)
    if expired then
      return @REASON_EXPIRED@
    end
    local sequence, _, reason = S:watermark_of(S.session)
    if sequence == S.sequence and reason ~= @REASON_NONE@ then
      return reason
    end
    return @REASON_UNKNOWN@
  end,

  status = function(S, holder)
    return struct.pack('<c1I4dd', S:mode_of(holder.holds), holder.permits or 0, S:token_of(holder),
      math.max(holder.ends - S.now, 0))
  end,

  load_hash = function(S, problem)
    if not string.find(problem, 'WRONGTYPE', 1, true) then
      error({ server = problem })
    end
    local names = { 'head' }
    if S.session then
      names[2], names[3] = 'm' .. S.session, 'q' .. S.session .. S.raw_sequence
    end
    local found = redis.pcall('HMGET', S.key, unpack(names))
    if found.err then
      S:refuse_foreign('', redis.call('TYPE', S.key).ok)
    end
    local head = found[1]
    local magic = head and string.sub(head, 1, 3)
    if magic ~= @MAGIC@ and magic ~= @NOTE_MAGIC@ or #head < 105 then
      S:refuse_foreign(head or '', 'hash')
    end
    S.stored = head
    local _, spec, last_scan, ticks, cursor, used, holders, unreachable, waiting, token,
      stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end =
      struct.unpack('<c3c13dBdI4I4I4I4ddddddd', head)
    if stored_end <= S.now then
      S.old_hash = true
      return
    end
    S.form, S.complete = 'hash', false
    for i = 2, #names do
      S.fields[names[i]] = found[i]
    end
    S:set_spec(spec)
    S.token, S.stored_end, S.earliest, S.last_scan = token, stored_end, earliest, last_scan
    S.ticks, S.cursor, S.used, S.holder_count, S.stored_holders = ticks, cursor, used, holders, holders
    S:check_order(first_ticket, next_ticket)
    S.waiter_count, S.unreachable, S.next_ticket = waiting, unreachable, next_ticket
    S.first_ticket, S.first_end, S.waiters_end = first_ticket, first_end, waiters_end
    if holders == 1 then
      local holder_id = string.sub(head, 106, 129)
      S.fields.s1, S.fields['h' .. holder_id] = holder_id, '\1\0\0\0' .. string.sub(head, 130)
    end
    if magic == @NOTE_MAGIC@ then
      S:load_note()
    end
  end,

  head = function(S, holder_id)
    local magic = S.note and @NOTE_MAGIC@ or @MAGIC@
    local first = S.fields[struct.pack('<c1d', 'w', S.first_ticket)]
    local first_end = first and struct.unpack('<d', first, 54) or S.first_end
    local head = struct.pack('<c3c13dBdI4I4I4I4ddddddd', magic, S.spec, S.last_scan, S.ticks, S.cursor,
      S.used, S.holder_count, S.unreachable, S.waiter_count, S.token, S.stored_end, S.earliest,
      S.next_ticket, S.first_ticket, first_end, S.waiters_end)
    return holder_id and head .. holder_id .. string.sub(S.fields['h' .. holder_id], 5) or head
  end,

  write_all = function(S, command, list)
    for from = 1, #list, @CHUNK@ do
      S:write(command, S.key, unpack(list, from, math.min(from + @CHUNK@ - 1, #list)))
    end
  end,

  flush_hash = function(S)
    local set, gone = { 'head', '' }, {}
    S:sweep_watermarks(gone)
    -- A sole holder is in the head. Several have fields.
    local sole = S.holder_count == 1 and S:field('s1')
    if sole and S.stored_holders > 1 or S.holder_count > 1 and S.stored_holders == 1 then
      S:put('s1', S:field('s1'))
      S:put('h' .. S.fields.s1, S:field('h' .. S.fields.s1))
    end
    for name in pairs(S.changed) do
      local value, kind = S.fields[name], string.byte(name)
      local of_holders = kind == @HOLDER@ or kind == @SLOT@
      if value and not (of_holders and S.holder_count == 1) then
        set[#set + 1] = name
        set[#set + 1] = value
      elseif S.form == 'hash' and not (of_holders and S.stored_holders <= 1) then
        gone[#gone + 1] = name
      end
    end
    set[2] = S:head(sole)
    S:write_all('HSET', set)
    S:write_all('HDEL', gone)
    if S.moved then
      S:write('PEXPIREAT', S.key, S:expire_at())
    end
  end,

  -- Removes a few expired watermarks now and then, so that they don't accumulate in a long-lived
  -- hash. No command reads an expired watermark.
  sweep_watermarks = function(S, gone)
    S.ticks = (S.ticks + 1) % @SWEEP_EVERY@
    -- The fast path leaves every @SWEEP_TICKETS@th waiter to the general part.
    if S.ticks ~= 0 and not (S.arrived and S.next_ticket % @SWEEP_TICKETS@ == 1) then
      return
    end
    local found = redis.call('HSCAN', S.key, S.cursor, 'COUNT', @SWEEP_COUNT@)
    S.cursor = tonumber(found[1])
    local fields = found[2]
    for i = 1, #fields, 2 do
      local name = fields[i]
      if string.byte(name) == @WATERMARK@ and struct.unpack('<d', fields[i + 1], 9) <= S.now
        and not S.changed[name]
      then
        gone[#gone + 1] = name
      end
    end
  end,
}
