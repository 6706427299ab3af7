-- List: a page of the server's keys. Changes nothing. It has no keys, so any node of a cluster runs it.
--
-- ARGV: the cursor, a pattern, about how many keys to look at. The answer is the next cursor and the keys
-- that match, each with its length.

local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local pieces = {struct.pack('<I4c0', #found[1], found[1])}
for i, key in ipairs(found[2]) do
  pieces[i + 1] = struct.pack('<I4c0', #key, key)
end
return table.concat(pieces)
