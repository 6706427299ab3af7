// redlock, as its README shows. A lock is not renewed; it says until when it is valid.
'use strict'

const Redis = require('ioredis')
const Redlock = require('redlock')
const { serve } = require('./protocol.js')

const clients = process.argv.slice(3).map((url) => new Redis(url))
for (const client of clients) client.on('error', () => {}) // It connects again by itself.
const RETRY_MS = 200 // Its default.

serve({
  acquire: async (key, leaseMs, waitMs) => {
    const retryCount = Math.floor(waitMs / RETRY_MS)
    const redlock = new Redlock(clients, { retryCount, retryDelay: RETRY_MS })
    try {
      return await redlock.lock(key, leaseMs)
    } catch (error) {
      if (error instanceof Redlock.LockError) return null
      throw error
    }
  },
  check: (lock) => Date.now() < lock.expiration,
  release: async (lock) => {
    await lock.unlock()
    return true
  },
})
