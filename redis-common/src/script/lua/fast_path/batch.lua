-- A batch: runs the fast path for each element, in order, up to the first one that needs the
-- general part. serve() continues from there.
local values, seen = redis.call('MGET', unpack(KEYS)), {} -- cheaper than one GET per element
local key, argument = {}, {}
try = function(i)
  local name, stored = KEYS[i], values[i]
  if seen[name] or not stored then
    -- An earlier element may have changed the value, and MGET returns nothing for a hash.
    stored = redis.pcall('GET', name)
  end
  seen[name], key[1], argument[1] = true, name, ARGV[i]
  return try_fast_path(key, argument, stored)
end
local all = #KEYS
answers = {}
while done < all do
  local answer = try(done + 1)
  if not answer then
    break
  end
  done = done + 1
  answers[done] = answer
end
if done == all then
  return table.concat(answers)
end
