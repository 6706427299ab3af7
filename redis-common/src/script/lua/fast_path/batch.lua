-- A batch: runs the fast path for each element, in order, up to the first one that needs the
-- general part. serve() continues from there. Neighbours with the same key are tried together first,
-- if the command has a fast path for that. If the fast path fails because a value is damaged, the general part gives
-- this element an error of its own.
local values, seen, ready, run_end = false, {}, {}, 0
local key, argument = {}, {}
try = function(i)
  local name = KEYS[i]
  key[1] = name
  if try_together and i > run_end and KEYS[i + 1] == name then
    run_end = i + 1
    while KEYS[run_end + 1] == name do
      run_end = run_end + 1
    end
    if not pcall(try_together, key, ARGV, i, run_end, ready) then
      ready = {}
    end
  end
  if ready[i] then
    return ready[i]
  end
  if not values then
    values = redis.call('MGET', unpack(KEYS)) -- cheaper than one GET per element
  end
  local stored = values[i]
  if seen[name] or not stored then
    -- An earlier element may have changed the value, and MGET returns nothing for a hash.
    stored = redis.pcall('GET', name)
  end
  seen[name], argument[1] = true, ARGV[i]
  local ok, answer = pcall(try_fast_path, key, argument, stored)
  return ok and answer
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
