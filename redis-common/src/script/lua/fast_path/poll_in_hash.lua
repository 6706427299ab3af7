-- Poll of a waiter in a hash, if nothing fits until somebody releases.
if type(first) == 'table' then
  local name, listening = struct.unpack('<c24xxxxxxxxB', ARGV[1])
  local fields = redis.pcall('HMGET', KEYS[1], 'head', 'q' .. name)
  local stored, own = fields[1], fields[2]
  @FIND_HEAD@
  if own and head then
    @READ_HEAD@
    local waiter, ticket = redis.call('HGET', KEYS[1], 'w' .. own), struct.unpack('<d', own)
    local waiter_end, wait_until = struct.unpack('<dd', waiter, 54)
    if @ONE_HOLD@ and waiter_end > now
      and (ticket == first_ticket or @FIRST_WAITER_LIVES@)
    then
      local waiter_lease = struct.unpack('<d', stored, 9)
      waiter_end = math.min(now + waiter_lease, wait_until)
      waiter = string.sub(waiter, 1, 53) .. struct.pack('<ddB', waiter_end, wait_until, listening)
        .. string.sub(waiter, 71)
      local written = redis.pcall('HSET', KEYS[1], 'w' .. own, waiter)
      if type(written) == 'number' then
        if stored_end < waiter_end + @RETENTION@ then
          stored_end = waiter_end + @RETENTION@ + @SLACK@
          redis.call('HSET', KEYS[1], 'head', string.sub(stored, 1, 57)
            .. struct.pack('<d', stored_end) .. string.sub(stored, 66))
          @SET_EXPIRY@
        end
        local ahead = math.min(ticket - first_ticket, waiting - 1)
        local retry_after, session = math.max(earliest - now, 1000), name
        @POLL_AFTER@
        return struct.pack('<c1dc1I4dd', @DONE@, now, 'Q', ahead, poll_after, waiter_end - now)
      end
    end
  end
end

