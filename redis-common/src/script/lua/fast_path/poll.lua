-- Poll of a waiter, if nobody can be granted until somebody releases.
if type(first) == 'table' then
  local name, listening = struct.unpack('<c24xxxxxxxxB', argument)
  local fields = redis.pcall('HMGET', key, 'head', 'q' .. name)
  local stored, own = fields[1], fields[2]
  local find_head, poll_after = @FIND_HEAD@, @POLL_AFTER@
  if own and find_head(key, stored, now) then
    local waiting, _, stored_end, earliest, _, first_ticket = struct.unpack('<I4ddddd', stored, 46)
    local waiter, ticket = redis.call('HGET', key, 'w' .. own), struct.unpack('<d', own)
    local waiter_end, wait_until = struct.unpack('<dd', waiter, 54)
    if waiter_end > now then
      local waiter_lease = struct.unpack('<d', stored, 9)
      waiter_end = math.min(now + waiter_lease, wait_until)
      waiter = string.sub(waiter, 1, 53) .. struct.pack('<ddB', waiter_end, wait_until, listening)
        .. string.sub(waiter, 71)
      local written = redis.pcall('HSET', key, 'w' .. own, waiter)
      if type(written) == 'number' then
        if stored_end < waiter_end + @RETENTION@ then
          stored_end = waiter_end + @RETENTION@ + @SLACK@
          redis.call('HSET', key, 'head', string.sub(stored, 1, 57)
            .. struct.pack('<d', stored_end) .. string.sub(stored, 66))
          redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
        end
        local ahead = math.min(ticket - first_ticket, waiting - 1)
        return struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead,
          poll_after(waiter_lease, ahead, math.max(earliest - now, 1000), name), waiter_end - now)
      end
    end
  end
end

