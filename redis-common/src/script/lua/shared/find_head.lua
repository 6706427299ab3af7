-- Sets `head` if nobody can be granted until somebody releases, else to false:
--   one exclusive holder, or one reader if a writer is first in the queue: the stored head
--   a full semaphore, or several readers if a writer is first in the queue: a head with one holder,
--   which stands for all of them
-- `full` says whether the whole capacity is taken.
local head, full = false, false
if stored and string.sub(stored, 1, 3) == @MAGIC@
  and string.sub(stored, 42, 45) == '\0\0\0\0' -- no unreachable waiter
then
  local kind = string.byte(stored, 4)
  full = string.sub(stored, 34, 37) == string.sub(stored, 5, 8)
  if full and kind ~= @SEMAPHORE@ then
    head = stored
  elseif full or kind == @RW_LOCK@ and string.byte(redis.call('HGET', KEYS[1],
    'w' .. string.sub(stored, 82, 89)) or '', 33) == @EXCLUSIVE@
  then
    local sole = not full and string.sub(stored, 38, 41) == '\1\0\0\0'
    head = sole and stored or string.sub(stored, 1, 105) .. @ALL_HOLDERS@
  end
end
