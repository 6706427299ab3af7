@ONE_HOLD@
      and string.byte(holds) == @EXCLUSIVE@
