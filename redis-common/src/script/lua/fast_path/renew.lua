-- Renewal of the only holder.
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.byte(stored, 49) == 1
then
  local session, _, owner, lease = struct.unpack('<c16dc8d', argument)
  local token, stored_end, _, _, _, _, _, _, holder_id, holder_end, flags, _, holds =
    struct.unpack('<ddddBBHBc24dBBc0I4c0', stored, 17)
  if stored_end > now and holder_id == session .. owner and holder_end > now
    and flags < @OWN_TOKEN@ and flags % 2 ~= @REVOKED@ and #holds == 9
    and string.sub(holds, 2) == string.sub(argument, 17, 24)
  then
    holder_end = math.max(holder_end, now + lease)
    local needed_end, written = holder_end + @RETENTION@, nil
    if stored_end < needed_end then
      stored_end = needed_end + @SLACK@
      local value = string.sub(stored, 1, 24) .. struct.pack('<dc45d', stored_end,
        string.sub(stored, 33, 77), holder_end) .. string.sub(stored, 86)
      written = redis.pcall('SET', key, value, 'PXAT', math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@).ok
    else
      local fresh = struct.pack('<d', holder_end)
      written = type(redis.pcall('SETRANGE', key, '77', fresh)) == 'number'
    end
    if written then
      return struct.pack('<c1dc1dd', @DONE@, now, 'N', token, holder_end - now)
    end
  end
end

