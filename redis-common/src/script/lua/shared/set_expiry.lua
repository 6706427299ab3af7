redis.call('PEXPIREAT', KEYS[1], math.ceil(stored_end / 1000) + @DELETED_AFTER_MS@)
