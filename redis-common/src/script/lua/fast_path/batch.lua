-- Runs the fast path for each element, in order, up to the first one that needs the general part. serve()
-- continues from there. If the fast path fails because a value is damaged, the general part gives this
-- element an error of its own. Neighbours in a batch with the same key are tried together first, if the
-- command can do that.
if #KEYS == 1 then
  first = redis.pcall('GET', KEYS[1])
  local answer = fast_path(KEYS[1], ARGV[1], first, now, clock_id)
  if answer then
    return answer
  end
else
  local values, seen, ready, run_end = false, {}, {}, 0
  try = function(i)
    local key = KEYS[i]
    if try_together and i > run_end and KEYS[i + 1] == key then
      run_end = i + 1
      while KEYS[run_end + 1] == key do
        run_end = run_end + 1
      end
      if not pcall(try_together, key, ARGV, i, run_end, ready, now) then
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
    if seen[key] or not stored then
      -- An earlier element may have changed the value, and MGET returns nothing for a hash.
      stored = redis.pcall('GET', key)
    end
    seen[key] = true
    local ok, answer = pcall(fast_path, key, ARGV[i], stored, now, clock_id)
    return ok and answer
  end
  answers = {}
  while done < #KEYS do
    local answer = try(done + 1)
    if not answer then
      break
    end
    done = done + 1
    answers[done] = answer
  end
  if done == #KEYS then
    return table.concat(answers)
  end
end
