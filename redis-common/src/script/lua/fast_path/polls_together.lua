-- Polls of several waiters of a hash, if nobody can be granted until somebody releases. Reads and writes
-- all of them at once, and puts the answers into `ready`. It leaves out an operation that doesn't wait, and
-- everything from the first expired waiter on. Each of those gets a step of its own later.
local function try_together(key, arguments, from, to, ready, now)
  local fields = { 'head' }
  for i = from, to do
    fields[i - from + 2] = 'q' .. string.sub(arguments[i], 1, 24)
  end
  local found = redis.pcall('HMGET', key, unpack(fields))
  local stored, elements, names = found[1], {}, {}
  local find_head, poll_after = @FIND_HEAD@, @POLL_AFTER@
  if not find_head(key, stored, now) then
    return
  end
  for i = from, to do
    local own = found[i - from + 2]
    if own then
      elements[#elements + 1] = i
      names[#names + 1] = 'w' .. own
    end
  end
  if #names < 2 then
    return
  end
  local waiting, _, stored_end, earliest, _, first_ticket = struct.unpack('<I4ddddd', stored, 46)
  local waiters, set, moved = redis.call('HMGET', key, unpack(names)), {}, false
  local waiter_lease = struct.unpack('<d', stored, 9)
  for n = 1, #names do
    local waiter, argument = waiters[n], arguments[elements[n]]
    local waiter_end, wait_until = struct.unpack('<dd', waiter, 54)
    if waiter_end <= now then
      break
    end
    waiter_end = math.min(now + waiter_lease, wait_until)
    set[2 * n - 1] = names[n]
    set[2 * n] = string.sub(waiter, 1, 53)
      .. struct.pack('<ddB', waiter_end, wait_until, string.byte(argument, 33))
      .. string.sub(waiter, 71)
    if stored_end < waiter_end + @RETENTION@ then
      stored_end, moved = waiter_end + @RETENTION@ + @SLACK@, true
    end
    local ahead = math.min(struct.unpack('<d', names[n], 2) - first_ticket, waiting - 1)
    ready[elements[n]] = struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead,
      poll_after(waiter_lease, ahead, math.max(earliest - now, 1000), argument), waiter_end - now)
  end
  if moved then
    set[#set + 1] = 'head'
    set[#set + 1] = string.sub(stored, 1, 57) .. struct.pack('<d', stored_end)
      .. string.sub(stored, 66)
  end
  if #set > 0 and type(redis.pcall('HSET', key, unpack(set))) ~= 'number' then
    for n = 1, #names do
      ready[elements[n]] = nil
    end
  elseif moved then
    redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
  end
end
