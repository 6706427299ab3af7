-- Renewal of the only hold of a hash, if it is exclusive.
if type(first) == 'table' then
  local argument = ARGV[1]
  local session, _, owner, lease = struct.unpack('<c16dc8d', argument)
  local answer = redis.pcall('HGET', KEYS[1], 'head')
  local stored = type(answer) == 'string' and answer
  if @ONE_HOLDER_IN_HASH@
  then
    local head = stored
    @READ_HEAD@
    if @ONE_EXCLUSIVE_HOLD@ and holder_id == session .. owner and flags % 2 ~= @REVOKED@
      and string.sub(holds, 2) == string.sub(argument, 17, 24)
      and @FIRST_WAITER_LIVES@
    then
      holder_end = math.max(holder_end, now + lease)
      local needed_end = holder_end + @RETENTION@
      @MOVE_STORED_END@
      local written = redis.pcall('HSET', KEYS[1], 'head', string.sub(stored, 1, 57)
        .. struct.pack('<d', stored_end) .. string.sub(stored, 66, 129)
        .. struct.pack('<d', holder_end) .. string.sub(stored, 138))
      if type(written) == 'number' then
        if moved then
          @SET_EXPIRY@
        end
        return struct.pack('<c1dc1dd', @DONE@, now, 'N', token, holder_end - now)
      end
    end
  end
end

