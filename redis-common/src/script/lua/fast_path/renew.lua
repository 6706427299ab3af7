-- Renewal of the hold in the fixed place of a string.
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@ and string.byte(stored, 95) == 1
  and #stored >= @SHORTEST@
then
  local operation, lease = string.sub(argument, 1, 32), struct.unpack('<d', argument, 33)
  if string.byte(stored, 4) == @SEMAPHORE@ then
    operation = string.sub(argument, 1, 24) .. string.sub(argument, 17, 24)
  end
  local token, stored_end = struct.unpack('<dd', stored, 17)
  local holder_end, flags = struct.unpack('<dB', stored, 86)
  if string.sub(stored, 49, 80) == operation and holder_end > now and stored_end > now
    and flags % 2 ~= @REVOKED@
  then
    holder_end = math.max(holder_end, now + lease)
    local needed_end, written = holder_end + @RETENTION@, nil
    if stored_end < needed_end then
      stored_end = needed_end + @SLACK@
      local value = string.sub(stored, 1, 24) .. struct.pack('<d', stored_end)
        .. string.sub(stored, 33, 85) .. struct.pack('<d', holder_end) .. string.sub(stored, 94)
      written = redis.pcall('SET', key, value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    else
      written = type(redis.pcall('SETRANGE', key, '85', struct.pack('<d', holder_end))) == 'number'
    end
    if written then
      return struct.pack('<c1dc1dd', @DONE@, now, 'N', token, holder_end - now)
    end
  end
end

