-- Leasehold: the state machine of leasehold-api, ported to Lua. The specification is
-- `leasehold_api::machine`. Most functions have the names of the functions there.
--
-- Each script consists of this start, the fast path of its command if it has one, the general part,
-- and the command.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- The id of this server's clock. Only the client knows it. Each message names it, because a replica or
-- another node may deliver the message.
local clock_id = ARGV[#KEYS + 1]
-- The answer to GET (nil before the call); how to try the fast path, the answers so far, and their number.
local first, try, answers, done = nil, false, false, 0

-- fast_path(key, argument, first, now, clock_id) handles the most frequent cases; each part says which.
-- Its result is the same as the general part's. It leaves all other cases to the general part, a failed
-- first write included.
-- The head of general/core.lua lists the positions in stored strings.
-- Lua hashes every byte of every string that it creates, and creates each function again in each call. So
-- the cases of a string, which come first, use no further function.
