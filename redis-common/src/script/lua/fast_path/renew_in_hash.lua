-- Renewal of the only hold of a hash, if it is exclusive.
if type(first) == 'table' then
  local session, _, owner, lease = struct.unpack('<c16dc8d', argument)
  local head = redis.pcall('HGET', key, 'head')
  local find_head = @FIND_HEAD@
  local stored, full = nil, false
  if type(head) == 'string' then
    stored, full = find_head(key, head, now)
  end
  if stored == head and full then
    local token, stored_end, _, _, _, _, _, holder_id, holder_end, flags, _, holds =
      struct.unpack('<dddddddc24dBBc0I4c0', stored, 50)
    if holder_id == session .. owner and flags % 2 ~= @REVOKED@
      and string.sub(holds, 2) == string.sub(argument, 17, 24)
    then
      holder_end = math.max(holder_end, now + lease)
      local needed_end = holder_end + @RETENTION@
      local moved = stored_end < needed_end
      if moved then
        stored_end = needed_end + @SLACK@
      end
      local written = redis.pcall('HSET', key, 'head', string.sub(stored, 1, 57)
        .. struct.pack('<d', stored_end) .. string.sub(stored, 66, 129)
        .. struct.pack('<d', holder_end) .. string.sub(stored, 138))
      if type(written) == 'number' then
        if moved then
          redis.call('PEXPIREAT', key, math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
        end
        return struct.pack('<c1dc1dd', @DONE@, now, 'N', token, holder_end - now)
      end
    end
  end
end

