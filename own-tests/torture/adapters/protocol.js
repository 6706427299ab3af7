// The loop of an adapter in JavaScript: reads commands, asks the library, and writes replies.
'use strict'

const readline = require('node:readline')

// acquire(key, leaseMs, waitMs) returns what is held, or null. check(held) and release(held) return whether
// it is, or was, still held. All may be async.
exports.serve = async ({ acquire, check, release }) => {
  const reply = (got, more) => process.stdout.write(JSON.stringify({ got, ...more }) + '\n')
  let held = null
  reply('ready')
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    try {
      if (command.do === 'acquire') {
        held = await acquire(command.key, command.lease_ms, command.wait_ms)
        reply(held ? 'held' : 'free')
      } else if (command.do === 'check') {
        reply(held && (await check(held)) ? 'held' : 'free')
      } else if (command.do === 'pass') {
        reply('ready')
      } else {
        const had = held
        held = null
        reply(had && (await release(had)) ? 'held' : 'free')
      }
    } catch (error) {
      // Whatever the library says goes into the history.
      reply('error', { text: `${error.name}: ${error.message}` })
    }
  }
  process.exit(0)
}
