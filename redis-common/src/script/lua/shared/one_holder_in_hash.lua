stored and string.sub(stored, 1, 3) == @MAGIC@
      and string.byte(stored, 4) ~= @SEMAPHORE@
      and string.sub(stored, 38, 45) == '\1\0\0\0\0\0\0\0' -- one holder, no unreachable waiter
