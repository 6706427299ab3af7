-- Sets `head` if nothing fits until somebody releases: the head of a hash with a sole exclusive holder.
-- For a full semaphore, and for readers with a writer behind them, a holder that stands for all of
-- them takes their place in it.
local head = false
if stored and string.sub(stored, 1, 3) == @MAGIC@ and string.byte(stored, 5) == @FAIR@
  and string.sub(stored, 43, 46) == '\0\0\0\0' -- no unreachable waiter
then
  local kind, full = string.byte(stored, 4), string.sub(stored, 35, 38) == string.sub(stored, 6, 9)
  if full and kind ~= @SEMAPHORE@ then
    head = stored
  elseif full or kind == @RW_LOCK@ and string.byte(redis.call('HGET', KEYS[1],
    'w' .. string.sub(stored, 83, 90)) or '', 33) == @EXCLUSIVE@
  then
    head = string.sub(stored, 1, 106) .. @ALL_HOLDERS@
  end
end
