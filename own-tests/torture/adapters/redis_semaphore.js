// redis-semaphore's Mutex, as "Example with lost lock handling" of its README shows.
'use strict'

const Redis = require('ioredis')
const { Mutex } = require('redis-semaphore')
const { serve } = require('./protocol.js')

const redis = new Redis(process.argv[3])
redis.on('error', () => {}) // It connects again by itself.

serve({
  acquire: async (key, leaseMs, waitMs) => {
    const mutex = new Mutex(redis, key, {
      lockTimeout: leaseMs,
      ...(waitMs ? { acquireTimeout: waitMs } : { acquireAttemptsLimit: 1 }),
      onLockLost() {},
    })
    return (await mutex.tryAcquire()) ? mutex : null
  },
  check: (mutex) => mutex.isAcquired,
  release: async (mutex) => {
    const had = mutex.isAcquired
    await mutex.release()
    return had
  },
})
