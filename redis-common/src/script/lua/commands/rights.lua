-- Names the rights that the user lacks, such as `+publish`. Changes nothing. KEYS[1] is the name of a
-- lock, ARGV[1] that of a channel. Servers before 7.0 can't tell.

local missing = {}
local function need(command, ...)
  local known, allowed = pcall(redis.acl_check_cmd, command, ...)
  if known and not allowed then
    missing[#missing + 1] = '+' .. command
  end
end
if redis.acl_check_cmd then
  for _, command in ipairs({'type', 'get', 'mget', 'hgetall', 'hlen', 'unlink'}) do
    need(command, KEYS[1])
  end
  need('set', KEYS[1], '')
  need('hget', KEYS[1], '')
  need('hmget', KEYS[1], '')
  need('hset', KEYS[1], '', '')
  need('hdel', KEYS[1], '')
  need('hscan', KEYS[1], '0')
  need('pexpireat', KEYS[1], '1')
  need('time')
  need('evalsha', '', '0')
  need('subscribe', ARGV[1])
  need('publish', ARGV[1], '')
end
return table.concat(missing, ' ')
