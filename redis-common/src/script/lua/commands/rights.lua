-- Names the rights that the user lacks, such as `+publish`. Changes nothing. Servers before 7.0 can't
-- tell.
--
-- The text before this one defines `key`, the Redis key of a lock, and the names of channels: `channel`,
-- and in a cluster `shard_channel`. They are no parameters, because the nodes of a cluster run only
-- scripts without keys wherever the keys are. `shard_push` says whether the client subscribes to shard
-- channels.

local missing = {}
local function need(right, ...)
  local words = {...}
  local command, subcommand = string.match(right, '^(%w+)|?(%w*)$')
  if subcommand ~= '' then
    table.insert(words, 1, subcommand)
  end
  local known, allowed = pcall(redis.acl_check_cmd, command, unpack(words))
  if known and not allowed then
    missing[#missing + 1] = '+' .. right
  end
end
if redis.acl_check_cmd then
  for _, command in ipairs({'type', 'get', 'mget', 'hgetall', 'hlen', 'unlink'}) do
    need(command, key)
  end
  need('set', key, '')
  need('setrange', key, '0', '')
  need('hget', key, '')
  need('hmget', key, '')
  need('hset', key, '', '')
  need('hdel', key, '')
  need('hscan', key, '0')
  need('pexpireat', key, '1')
  need('time')
  need('evalsha', '', '0')
  need('subscribe', channel)
  need('publish', channel, '')
  need('pubsub|numsub', channel)
  if shard_channel then
    need('asking')
    need('spublish', shard_channel, '')
    need('pubsub|shardnumsub', shard_channel)
  end
  if shard_push then
    need('ssubscribe', shard_channel)
    need('sunsubscribe', shard_channel)
  end
end
return table.concat(missing, ' ')
