-- Release: releases a hold, rejects an offer (a grant to a waiter), or leaves the queue.

-- Removes one hold from its holder. Returns the reply, and whether this freed any capacity.
local function remove_hold(S, holder)
  local holds = holder.holds
  if #holds == 9 then
    S:remove_holder(holder)
    return 'R' .. struct.pack('<I4', 0), true
  end
  local before = S:mode_of(holds)
  local at = S:hold_at(holder, S.raw_sequence)
  holder.holds = string.sub(holds, 1, at - 1) .. string.sub(holds, at + 9)
  S:put_holder(holder)
  local after = S:mode_of(holder.holds)
  if before ~= after then
    -- The holder has no write hold left: this is a downgrade (rule 5).
    S.used = S.used - S:weight(before) + S:weight(after)
    S.token = math.max(S.token + 1, S.now)
  end
  return 'R' .. struct.pack('<I4', #holder.holds / 9) .. S:status(holder), before ~= after
end

return S:serve(function(S)
  local expired = S:drop_if_expired()
  S:settle(S.waiter_count > 0)
  local reply, freed
  local holder = S:live()
  if holder then
    reply, freed = remove_hold(S, holder)
  else
    local waiter = S.waiter_count > 0 and S:own_waiter()
    if waiter then
      S:remove_waiter(waiter)
      reply, freed = 'L', true
    else
      reply, freed = 'N' .. S:reason(expired), false
    end
  end
  S:raise_watermark(@REASON_RELEASED@)
  if freed then
    S:settle(S.waiter_count > 0)
  end
  return reply
end)
