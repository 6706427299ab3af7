-- Renewal of the only holder. With waiters, only of an exclusive hold.
if fast_path then
  first = redis.pcall('GET', KEYS[1])
end
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.byte(stored, 49) == 1
then
  local argument = ARGV[1]
  local session, _, owner, lease = struct.unpack('<c16dc8d', argument)
  local token, stored_end, earliest, _, _, waiters, watermarks, skip, holder_id, holder_end, flags,
    _, holds, at = struct.unpack('<ddddBBBHc24dBBc0I4c0', stored, 17)
  local usable = flags < @OWN_TOKEN@
  if usable and waiters > 0 then
    local head_end, _, head_flags = struct.unpack('<ddB', stored, at + 33 * watermarks + skip + 61)
    -- The general part drops an expired waiter and skips an unreachable one.
    usable = string.byte(holds) == @EXCLUSIVE@ and earliest > now
      and head_end > now and head_flags < @UNREACHABLE@
  end
  if usable and stored_end > now and holder_id == session .. owner and holder_end > now
    and flags % 2 ~= @REVOKED@ and #holds == 9
    and string.sub(holds, 2) == string.sub(argument, 17, 24)
  then
    holder_end = math.max(holder_end, now + lease)
    local needed_end = holder_end + @RETENTION@
    @MOVE_STORED_END@
    local written
    if moved then
      local value = string.sub(stored, 1, 24) .. struct.pack('<dc45d', stored_end,
        string.sub(stored, 33, 77), holder_end) .. string.sub(stored, 86)
      written = redis.pcall('SET', KEYS[1], value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    else
      local fresh = struct.pack('<d', holder_end)
      written = type(redis.pcall('SETRANGE', KEYS[1], '77', fresh)) == 'number'
    end
    if written then
      return struct.pack('<c1dc1dd', @DONE@, now, 'N', token, holder_end - now)
    end
  end
end

