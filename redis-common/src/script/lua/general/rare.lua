-- Methods for rare events and rare commands.

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
    if not S.wrote and not S.acquires and string.find(answer.err, 'OOM', 1, true) then
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

  put_note = function(S, note)
    S.note = note
    S:put('n', struct.pack('<dI4dBc0', note.token, note.version, note.ends, #note.bytes, note.bytes))
    S:cover(note.ends)
  end,

  view_note = function(S, note)
    if not note then
      return '\0'
    end
    return '\1' .. struct.pack('<dI4dBc0', note.token, note.version, math.max(note.ends - S.now, 0),
      #note.bytes, note.bytes)
  end,

  -- Whether an acquire turns this hash into a string: nobody has waited for 2 W, so the key doesn't
  -- change back and forth. If so, reads all fields.
  becomes_string = function(S)
    if S.waiter_count > 0 or S.holder_count > 1 or S.note
      or S.waiters_end + 2 * @DELIVERY_WINDOW@ > S.now
      or redis.call('HLEN', S.key) > math.min(S.packed_records, @SMALL_HASH@)
    then
      return false
    end
    local all = redis.call('HGETALL', S.key)
    for i = 1, #all, 2 do
      if S.fields[all[i]] == nil and all[i] ~= 'head' then
        S.fields[all[i]] = all[i + 1]
      end
    end
    S.complete, S.old_hash, S.form = true, true, false
    return true
  end,

  -- Makes a write that changes nothing. Raises an error if the server refuses it.
  ensure_writable = function(S)
    if not S.acquires then
      S:write('PEXPIREAT', S.key, S:expire_at())
    elseif S.old_hash then
      S:write('HSET', S.key, 'head', S.stored)
    else
      S:write('SET', S.key, S.stored, 'KEEPTTL')
    end
  end,

  -- Replaces the string by a hash. No command does that in one step. While the slot of the key
  -- migrates, the server refuses to create keys in it, so a string that was deleted would be lost.
  become_hash = function(S)
    local other = S.form == 'string' and redis.pcall('GET', S.key .. '?')
    if type(other) == 'table' and string.find(other.err, 'non local key', 1, true) then
      error({ server = 'TRYAGAIN the slot of the key migrates' })
    end
    local slots = {}
    for name, value in pairs(S.fields) do
      S.changed[name] = value and true or nil
      if value and string.byte(name) == @HOLDER@ then
        slots[#slots + 1] = name
      end
    end
    for slot, name in ipairs(slots) do
      S:put(name, struct.pack('<I4', slot) .. string.sub(S.fields[name], 5))
      S:put(string.format('s%.0f', slot), string.sub(name, 2))
    end
    if S.stored then
      S:ensure_writable()
      S:write('UNLINK', S.key)
    end
    S.form, S.stored_holders, S.moved = false, 0, true
    S:flush_hash()
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

  -- The holders that have not expired.
  live_holders = function(S)
    local found = {}
    S:each_holder(function(holder_id, holder_end)
      if holder_end > S.now then
        found[#found + 1] = S:holder_of(holder_id)
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
    return S:holder_before(a.id, b.id)
  end,

  -- Returns an iterator over the waiters in order. It reads a chunk of tickets at once.
  each_waiter = function(S)
    local ticket = S.waiter_count > 0 and S.first_ticket or @NONE@
    return function()
      if ticket == @NONE@ then
        return nil
      end
      local names = {}
      if S.fields[struct.pack('<c1d', 'w', ticket)] == nil then
        for near = ticket, math.min(ticket + @CHUNK@, S.next_ticket) - 1 do
          names[#names + 1] = struct.pack('<c1d', 'w', near)
        end
        S:fetch(names)
      end
      local waiter = S:waiter_at(ticket)
      ticket = S:ticket_after(ticket)
      return waiter
    end
  end,

  -- Drops all expired waiters, if there can be any.
  sweep_waiters = function(S)
    if S.waiter_count == 0 or S.now < S.waiters_end then
      return
    end
    local least
    for waiter in S:each_waiter() do
      if waiter.ends <= S.now then
        S:remove_waiter(waiter)
      else
        least = math.min(least or waiter.ends, waiter.ends)
      end
    end
    S.waiters_end, S.dirty = least or S.now, true
  end,
}
