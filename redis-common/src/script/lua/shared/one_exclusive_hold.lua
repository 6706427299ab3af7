stored_end > now and earliest > now and ends > now and flags < @OWN_TOKEN@ and #holds == 9
      and string.byte(holds) == @EXCLUSIVE@
