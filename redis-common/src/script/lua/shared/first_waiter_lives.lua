(waiting == 0 or first_end > now or struct.unpack('<d',
      redis.call('HGET', KEYS[1], struct.pack('<c1d', 'w', first_ticket)), 54) > now)
