-- Leasehold: the state machine of leasehold-api, ported. Each script is this start, the quiet way
-- of its command if it has one, once as it stands and once as a function for several elements, the
-- general part, and the command. The specification is
-- `leasehold_api::machine`; functions here carry the names of the functions there.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- The quiet way: what most locks do most of the time, one command to a free key or to one with a
-- single hold and no queue, is decided here without a function. It does what the general way
-- below does, and leaves everything that is not as simple to it, a failed write included, before
-- it has changed anything. Positions in a stored string are those of flush_thin().
-- Lua hashes every byte of every string it makes, which takes as long as all else for a queue of
-- ten. So what is long is cut and joined only where it must move, and SETRANGE writes the rest.
local quiet = #KEYS == 1
local first -- what GET gave; nil if it was not asked
-- Of several elements: what tries the quiet way with one, the answers so far, and how many.
local try, answers, done = false, false, 0
