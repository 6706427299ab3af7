-- Methods for hashes, and for rare events and commands.

{
  -- Refuses a foreign value, and names its kind. A state of ours starts with its format.
  refuse_foreign = function(S, stored, kind)
    if string.sub(stored, 1, 2) == string.sub(@MAGIC@, 1, 2) and #stored > 2 then
      kind = 'leasehold format ' .. string.byte(stored, 3)
    end
    error({ foreign = kind })
  end,

  -- Called after a step that wrote nothing. The state of a replica may be old, so nothing can be decided
  -- by it. A replica refuses every write, also this one, which changes nothing: a string has no fields,
  -- and no hash of ours has a field without a name.
  refuse_on_replica = function(S)
    local answer = redis.pcall('HDEL', S.key, '')
    if type(answer) == 'table' and string.find(answer.err, 'READONLY', 1, true) then
      error({ server = answer.err })
    end
  end,

  -- Called by write() after a failed write.
  write_again = function(S, answer, ...)
    if not S.wrote and not S.strict and string.find(answer.err, 'OOM', 1, true) then
      -- Redis stops checking memory after a script's first write, and PEXPIREAT needs no memory. It
      -- sets the expiry that the failed write would set or keep.
      redis.pcall('PEXPIREAT', S.key, S:expire_at())
      answer = redis.pcall(...)
    end
    if type(answer) == 'table' and answer.err then
      error({ server = answer.err })
    end
  end,

  -- The answer for an element whose step failed. For a single element that was not executed, it is
  -- the server's error. So it is for a batch on a replica, which can't have executed any element: the
  -- client then looks for the primary.
  problem = function(S, answer)
    local status, text = @FOREIGN@, type(answer) == 'table' and answer.foreign
    if not text then
      status = S.wrote and @BROKEN@ or @REFUSED@
      text = type(answer) == 'table' and answer.server or tostring(answer)
      -- Redis 6.2 puts the position in the script before the error. It begins with an at sign, \64.
      text = string.match(text, '^\64[^:]*: *%d+: *%-(.*)$') or text
      if not string.match(text, '^%u+ ') then
        text = 'ERR ' .. text
      end
    end
    if status == @REFUSED@ and (#KEYS == 1 or string.find(text, '^READONLY ')) then
      return { err = text }
    end
    text = string.sub(text, 1, 255)
    return status .. struct.pack('<dB', S.now, #text) .. text
  end,

  start_hash = function(S, tick, swept_to, holders)
    S.slots, S.fresh_slots, S.gone_holders = {}, {}, {}
    S.ticks, S.cursor, S.stored_holders = tick, swept_to, holders
  end,

  load_hash = function(S, problem)
    if not string.find(problem, 'WRONGTYPE', 1, true) then
      error({ server = problem })
    end
    S.stored = redis.pcall('HGET', S.key, 'head')
    if type(S.stored) == 'table' then
      S:refuse_foreign('', redis.call('TYPE', S.key).ok)
    end
    local magic = S.stored and string.sub(S.stored, 1, 3)
    if magic ~= @MAGIC@ and magic ~= @NOTE_MAGIC@ or #S.stored < 105 then
      S:refuse_foreign(S.stored or '', 'hash')
    end
    local _, bytes, scanned, tick, swept_to, weights, holders, unreachable, waiting, token,
      stored_end, earliest, next_ticket, first, first_end, waiters_end, at =
      struct.unpack('<c3c13dBdI4I4I4I4ddddddd', S.stored)
    if stored_end <= S.now then
      S.old_hash = true
      return
    end
    S.form = 'hash'
    S:set_spec(bytes)
    S.token, S.stored_end, S.earliest, S.last_scan = token, stored_end, earliest, scanned
    S.used, S.holder_count, S.waiter_count = weights, holders, waiting
    S:start_hash(tick, swept_to, holders)
    if magic == @NOTE_MAGIC@ then
      S:load_note()
    end
    S:check_order(first, next_ticket)
    S.waiters = {
      by_ticket = {}, holes = {}, changed = {}, tickets = {}, gone = {},
      next_ticket = next_ticket, first = first, first_end = first_end, unreachable = unreachable,
      earliest = waiters_end,
    }
    if holders == 1 then
      local holder_id = string.sub(S.stored, at, at + 23)
      local holder = S:read_holder(S.stored, at + 24)
      S.holders[holder_id], S.slots[1], holder.slot = holder, holder_id, 1
    end
  end,

  parse_holder = function(S, bytes)
    local slot, at = struct.unpack('<I4', bytes)
    local holder = S:read_holder(bytes, at)
    holder.slot = slot
    return holder
  end,

  parse_watermark = function(_, bytes)
    local sequence, ends, reason = struct.unpack('<ddc1', bytes)
    return { sequence = sequence, ends = ends, reason = reason }
  end,

  -- Keeps what the field of a ticket says: a waiter, the other end of a hole, or nothing.
  keep_waiter = function(S, ticket, bytes)
    local waiter = false
    if bytes and #bytes == 8 then
      S.waiters.holes[ticket] = struct.unpack('<d', bytes)
    elseif bytes then
      waiter = S:read_waiter(bytes, 1)
    end
    S.waiters.by_ticket[ticket] = waiter
    return waiter
  end,

  -- The fields of the tickets from this one on, up to a chunk of them.
  waiter_fields = function(S, first)
    local fields = {}
    for ticket = first, math.min(first + @CHUNK@, S.waiters.next_ticket) - 1 do
      fields[#fields + 1] = struct.pack('<c1d', 'w', ticket)
    end
    return redis.call('HMGET', S.key, unpack(fields))
  end,

  -- Loads the waiters from this ticket on, up to a chunk of them.
  load_waiters = function(S, first)
    if S.form ~= 'hash' then
      return
    end
    for i, bytes in ipairs(S:waiter_fields(first)) do
      if S.waiters.by_ticket[first + i - 1] == nil then
        S:keep_waiter(first + i - 1, bytes)
      end
    end
  end,

  load_note = function(S)
    local bytes = redis.call('HGET', S.key, 'n')
    if bytes then
      local token, version, ends, text = struct.unpack('<dI4dBc0', bytes)
      S.note = { token = token, version = version, ends = ends, bytes = text }
    end
  end,

  -- The note, unless its epoch has ended and it is no longer kept.
  standing_note = function(S)
    local note = S.note
    if note and (note.token == S.token or note.ends > S.now) then
      return note
    end
  end,

  view_note = function(S, note)
    if not note then
      return '\0'
    end
    return '\1' .. struct.pack('<dI4dBc0', note.token, note.version, math.max(note.ends - S.now, 0),
      #note.bytes, note.bytes)
  end,

  each_holder_in_hash = function(S, visit)
    for from = 1, S.holder_count, @CHUNK@ do
      local to = math.min(from + @CHUNK@ - 1, S.holder_count)
      local fields = {}
      for slot = from, to do
        fields[#fields + 1] = string.format('s%.0f', slot)
      end
      local holder_ids = redis.call('HMGET', S.key, unpack(fields))
      for i = 1, #fields do
        local holder_id = S.slots[from + i - 1] or holder_ids[i]
        holder_ids[i], fields[i] = holder_id, 'h' .. holder_id
      end
      local records = redis.call('HMGET', S.key, unpack(fields))
      for i = 1, #fields do
        local known = S.holders[holder_ids[i]]
        visit(holder_ids[i], known and known.ends or struct.unpack('<d', records[i], 5), records[i])
      end
    end
  end,

  slot_holder = function(S, slot)
    local holder_id = S.slots[slot]
    if not holder_id then
      holder_id = redis.call('HGET', S.key, string.format('s%.0f', slot))
      S.slots[slot] = holder_id
    end
    return holder_id
  end,

  -- Slots are numbered from 1 without gaps: if a holder is removed, the last one takes its slot.
  add_slot = function(S, holder_id, holder)
    holder.slot = S.holder_count
    S.slots[S.holder_count] = holder_id
    S.fresh_slots[S.holder_count] = true
  end,

  remove_slot = function(S, holder_id, holder)
    S.gone_holders[holder_id] = true
    local last = S.holder_count
    if holder.slot ~= last then
      local last_id = S:slot_holder(last)
      local last_holder = S:holder_of(last_id)
      last_holder.slot, last_holder.fresh = holder.slot, true
      S.slots[holder.slot] = last_id
      S.fresh_slots[holder.slot] = true
    end
    S.slots[last] = nil
    S.fresh_slots[last] = true
  end,

  -- Makes a write that changes nothing. Raises an error if the server refuses it.
  ensure_writable = function(S)
    if S.wrote then
      return
    end
    if not S.strict then
      S:write('PEXPIREAT', S.key, S:expire_at())
    elseif S.form == 'hash' or S.old_hash then
      S:write('HSET', S.key, 'head', S.stored)
    elseif S.stored then
      S:write('SET', S.key, S.stored, 'KEEPTTL')
    end
  end,

  delete_key = function(S)
    S:ensure_writable()
    S:write('UNLINK', S.key)
    S.old_hash = false
  end,

  write_all = function(S, command, list)
    for from = 1, #list, @CHUNK@ do
      S:write(command, S.key, unpack(list, from, math.min(from + @CHUNK@ - 1, #list)))
    end
  end,

  head = function(S)
    local q, holder_id, holder = S:queue(), '', ''
    local head_of_queue = q.by_ticket[q.first]
    if S.holder_count == 1 then
      holder_id = S:slot_holder(1)
      holder = S:write_holder(S:holder_of(holder_id))
    end
    local magic = S.note and @NOTE_MAGIC@ or @MAGIC@
    return struct.pack('<c3c13dBdI4I4I4I4ddddddd', magic, S.spec, S.last_scan, S.ticks,
      S.cursor, S.used, S.holder_count, q.unreachable, S.waiter_count, S.token, S.stored_end,
      S.earliest, q.next_ticket, q.first, head_of_queue and head_of_queue.ends or q.first_end,
      q.earliest) .. holder_id .. holder
  end,

  put_waiters = function(S, set)
    for ticket, waiter in pairs(S.waiters.by_ticket) do
      if waiter and waiter.fresh then
        set[#set + 1] = struct.pack('<c1d', 'w', ticket)
        set[#set + 1] = S:write_waiter(waiter)
        if waiter.arrived then
          set[#set + 1] = 'q' .. waiter.session .. waiter.raw
          set[#set + 1] = struct.pack('<d', ticket)
        end
      end
    end
    for ticket in pairs(S.waiters.changed) do
      if S.waiters.holes[ticket] then
        set[#set + 1] = struct.pack('<c1d', 'w', ticket)
        set[#set + 1] = struct.pack('<d', S.waiters.holes[ticket])
      end
    end
  end,

  -- Several holders have fields. A sole holder is in the head, and loses its fields.
  put_holders = function(S, set, gone)
    if S.holder_count == 1 and S.stored_holders > 1 then
      gone[#gone + 1], gone[#gone + 2] = 's1', 'h' .. S:slot_holder(1)
    end
    if S.holder_count <= 1 then
      return
    end
    for holder_id, holder in pairs(S.holders) do
      if holder and (holder.fresh or S.stored_holders == 1) then
        set[#set + 1] = 'h' .. holder_id
        set[#set + 1] = struct.pack('<I4', holder.slot) .. S:write_holder(holder)
      end
    end
    for slot, holder_id in pairs(S.slots) do
      if S.fresh_slots[slot] or S.stored_holders == 1 then
        set[#set + 1] = string.format('s%.0f', slot)
        set[#set + 1] = holder_id
      end
    end
  end,

  put_watermarks = function(S, set)
    for session, watermark in pairs(S.watermarks) do
      if watermark and watermark.fresh then
        set[#set + 1] = 'm' .. session
        set[#set + 1] = struct.pack('<ddc1', watermark.sequence, watermark.ends, watermark.reason)
      end
    end
  end,

  drop_fields = function(S)
    local gone = {}
    for ticket in pairs(S.waiters.changed) do
      if not S.waiters.holes[ticket] then
        gone[#gone + 1] = struct.pack('<c1d', 'w', ticket)
      end
    end
    for name in pairs(S.waiters.gone) do
      if not S.waiters.tickets[name] then
        gone[#gone + 1] = 'q' .. name
      end
    end
    for holder_id in pairs(S.gone_holders) do
      if not S.holders[holder_id] then
        gone[#gone + 1] = 'h' .. holder_id
      end
    end
    for slot in pairs(S.fresh_slots) do
      if not S.slots[slot] then
        gone[#gone + 1] = string.format('s%.0f', slot)
      end
    end
    return gone
  end,

  -- Removes a few expired watermarks now and then, so that they don't accumulate in a long-lived
  -- hash. No command reads an expired watermark.
  sweep_watermarks = function(S, gone)
    S.ticks = (S.ticks + 1) % @SWEEP_EVERY@
    -- The fast path leaves every @SWEEP_TICKETS@th waiter to the general part.
    local next_ticket = S.waiters.next_ticket
    local last = S.waiters.by_ticket[next_ticket - 1]
    local due = next_ticket % @SWEEP_TICKETS@ == 1 and last and last.arrived
    if S.ticks ~= 0 and not due then
      return
    end
    local found = redis.call('HSCAN', S.key, S.cursor, 'COUNT', @SWEEP_COUNT@)
    S.cursor = tonumber(found[1])
    local fields = found[2]
    for i = 1, #fields, 2 do
      local field = fields[i]
      if string.byte(field) == @WATERMARK@ then
        local session = string.sub(field, 2)
        local _, watermark_end = struct.unpack('<dd', fields[i + 1])
        local fresh = S.watermarks[session] and S.watermarks[session].fresh
        if watermark_end <= S.now and not fresh then
          gone[#gone + 1] = field
        end
      end
    end
  end,

  load_rest = function(S)
    local all = redis.call('HGETALL', S.key)
    for i = 1, #all, 2 do
      local field, name = string.byte(all[i]), string.sub(all[i], 2)
      if field == @HOLDER@ and S.holders[name] == nil and #name == 24 then
        S.holders[name] = S:parse_holder(all[i + 1])
      elseif field == @WATERMARK@ and S.watermarks[name] == nil then
        S.watermarks[name] = S:parse_watermark(all[i + 1])
      end
    end
  end,

  flush_hash = function(S)
    local had_note = S.note
    S.note = S:standing_note() or false
    local nearly_empty = S.waiter_count == 0 and S.holder_count <= 1
      and (S.shrunk or had_note) and not S.note
    -- Far less than flush_packed() allows, so that a key doesn't change back and forth.
    if nearly_empty and redis.call('HLEN', S.key) <= math.min(S.packed_records, @SMALL_HASH@) then
      S:load_rest()
      S.old_hash = true
      return S:flush_packed()
    end
    local set, gone = { 'head', '' }, S:drop_fields()
    if S.note and S.note.fresh then
      set[3], set[4] = 'n', struct.pack('<dI4dBc0', S.note.token, S.note.version, S.note.ends,
        #S.note.bytes, S.note.bytes)
    elseif had_note and not S.note then
      gone[#gone + 1] = 'n'
    end
    S:sweep_watermarks(gone)
    set[2] = S:head()
    S:put_waiters(set)
    S:put_holders(set, gone)
    S:put_watermarks(set)
    S:write_all('HSET', set)
    S:write_all('HDEL', gone)
    if S.moved then
      S:write('PEXPIREAT', S.key, S:expire_at())
    end
  end,

  -- Replaces the string by a hash. No command does that in one step. While the slot of the key
  -- migrates, the server refuses to create keys in it, so a string that was deleted would be lost.
  become_hash = function(S)
    local other = S.form == 'packed' and redis.pcall('GET', S.key .. '?')
    if type(other) == 'table' and string.find(other.err, 'non local key', 1, true) then
      error({ server = 'TRYAGAIN the slot of the key migrates' })
    end
    local slot = 0
    local q = S:queue()
    S:start_hash(0, 0, 0)
    for ticket, waiter in pairs(q.by_ticket) do
      if waiter then
        waiter.fresh, waiter.arrived = true, true
      end
      q.changed[ticket] = not waiter or nil
    end
    q.gone = {}
    for holder_id, holder in pairs(S.holders) do
      if holder then
        slot = slot + 1
        S.slots[slot], S.fresh_slots[slot] = holder_id, true
        holder.slot, holder.fresh = slot, true
      end
    end
    for _, watermark in pairs(S.watermarks) do
      if watermark then
        watermark.fresh = true
      end
    end
    S:delete_key()
    S.shrunk, S.moved = false, true
    S:flush_hash()
  end,

  -- Drops all expired waiters, if there can be any.
  sweep_waiters = function(S)
    if S.waiter_count == 0 or S.now < S.waiters.earliest then
      return
    end
    local ticket, least = S.waiters.first, nil
    while ticket ~= @NONE@ do
      if S.waiters.by_ticket[ticket] == nil then
        S:load_waiters(ticket)
      end
      local waiter = S:waiter_at(ticket)
      if waiter.ends <= S.now then
        ticket = S:remove_waiter(ticket, waiter)
      else
        least = math.min(least or waiter.ends, waiter.ends)
        ticket = S:ticket_after(ticket)
      end
    end
    S.waiters.earliest, S.dirty = least or 0, true
  end,

  -- Returns the holders that have not expired, and sets `holder_id` in each.
  live_holders = function(S)
    local found = {}
    S:each_holder(function(holder_id, holder_end, bytes)
      if holder_end > S.now then
        local holder = S.holders[holder_id] or S:parse_holder(bytes)
        S.holders[holder_id], holder.holder_id = holder, holder_id
        found[#found + 1] = holder
      end
    end)
    return found
  end,

  -- The order in which inspect lists holders: the least remaining time first.
  earlier = function(S, a, b)
    if a.ends ~= b.ends then
      return a.ends < b.ends
    elseif S:token_of(a) ~= S:token_of(b) then
      return S:token_of(a) < S:token_of(b)
    elseif a.label ~= b.label then
      return S:bytes_before(a.label, b.label)
    end
    return S:holder_before(a.holder_id, b.holder_id)
  end,

  -- Calls `visit(bytes)` for each packed waiter, in order. No waiter has changed in this step.
  each_waiter = function(S, visit)
    local ticket = S.waiter_count > 0 and S.waiters.first or @NONE@
    while S.form == 'packed' and ticket ~= @NONE@ do
      visit(S:waiter_at(ticket).bytes)
      ticket = S:ticket_after(ticket)
    end
    local from
    while ticket ~= @NONE@ and ticket ~= from and ticket < S.waiters.next_ticket do
      from = ticket
      local fields = S:waiter_fields(from)
      local bytes = fields[1]
      while bytes do
        if #bytes == 8 then
          S:keep_waiter(ticket, bytes)
          ticket = S:ticket_after_hole(ticket)
        else
          visit(bytes)
          ticket = ticket + 1
        end
        bytes = fields[ticket - from + 1]
      end
    end
  end,
}
