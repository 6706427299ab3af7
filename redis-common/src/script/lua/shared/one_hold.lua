stored_end > now and earliest > now and holder_end > now and flags < @OWN_TOKEN@ and #holds == 9
