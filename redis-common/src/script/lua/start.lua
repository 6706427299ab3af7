-- Leasehold: the state machine of leasehold-api, ported to Lua. The specification is
-- `leasehold_api::machine`. Most functions have the names of the functions there.
--
-- Each script consists of this start, the fast path of its command if it has one, the general part,
-- and the command. A script contains its fast path twice: as plain text for a single element, and
-- as a function for a batch.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- The id of this server's clock. Only the client knows it. Each message names it, because a replica or
-- another node may deliver the message.
local clock_id = ARGV[#KEYS + 1]

-- The fast path handles the most frequent cases without calling a Lua function; each file says which.
-- Its result is the same as the general part's. It leaves all other cases to the general part, a failed
-- first write included.
-- The head of general/core.lua lists the positions in stored strings.
-- Lua hashes every byte of every string that it creates. With ten waiters, that costs as much as
-- everything else. So a fast path rebuilds a long string only if parts of it move. Otherwise it
-- overwrites bytes with SETRANGE.
local fast_path = #KEYS == 1
local first -- the answer to GET; nil before the call
-- For a batch: the fast path as a function, the answers so far, and their number.
local try, answers, done = false, false, 0
