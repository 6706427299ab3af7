-- Leasehold: the state machine of leasehold-api, ported to Lua. The specification is
-- `leasehold_api::machine`; functions here carry the names of the functions there.
--
-- Each script consists of this start, the fast path of its command if it has one, the general part,
-- and the command. A fast path stands there twice: as plain text for a single element, and as a
-- function for a batch.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- The fast path decides the most frequent cases without calling a Lua function: one command to a
-- key that is free, or that has a single hold. It does what the general part does. It leaves
-- everything else to the general part, a failed write included, before it has changed anything.
-- Positions in a stored string are those of flush_packed().
-- Lua hashes every byte of every string it makes. For a queue of ten that takes as long as all else.
-- So long strings are cut and joined only where their parts move, and SETRANGE writes the rest.
local fast_path = #KEYS == 1
local first -- what GET returned; nil before it was called
-- For a batch: the fast path for one element, the answers so far, and their number.
local try, answers, done = false, false, 0
