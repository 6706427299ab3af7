-- Returns a head with one hold if nobody can be granted until somebody releases, else nothing:
--   one exclusive holder, or one reader if a writer is first in the queue: the stored head
--   a full semaphore, or several readers if a writer is first in the queue: a head with one holder,
--   which stands for all of them
-- Also returns whether the whole capacity is taken.
function(key, stored, now)
  if not stored or string.sub(stored, 1, 3) ~= @MAGIC@
    or string.sub(stored, 42, 45) ~= '\0\0\0\0' -- unreachable waiters
  then
    return nil
  end
  local kind, full = string.byte(stored, 4), string.sub(stored, 34, 37) == string.sub(stored, 5, 8)
  local holders, _, waiting, _, stored_end, earliest, _, first, first_end =
    struct.unpack('<I4I4I4ddddc8d', stored, 38)
  if stored_end <= now or earliest <= now or holders == 0 then
    return nil
  end
  if not full and (kind ~= @RW_LOCK@ or waiting == 0) then
    return nil
  end
  if not full or waiting > 0 and first_end <= now then
    local waiter = redis.call('HGET', key, 'w' .. first)
    if not full and string.byte(waiter, 33) ~= @EXCLUSIVE@ or struct.unpack('<d', waiter, 54) <= now then
      return nil
    end
  end
  if full and kind ~= @SEMAPHORE@ or not full and holders == 1 then
    local holder_end, flags, _, holds = struct.unpack('<dBBc0I4c0', stored, 130)
    if holder_end > now and flags < @OWN_TOKEN@ and #holds == 9 then
      return stored, full
    end
    return nil
  end
  return string.sub(stored, 1, 105) .. @ALL_HOLDERS@, full
end
