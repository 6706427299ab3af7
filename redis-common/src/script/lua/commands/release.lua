-- Release: releases a hold, rejects an offer (a grant to a waiter), or leaves the queue.

-- Removes one hold from its holder. Returns the reply, and whether this freed any capacity.
local function remove_hold(S, holder)
  local holds = holder.holds
  if #holds == 9 then
    S:remove_holder(S:holder_id(), holder)
    return 'R' .. struct.pack('<I4', 0), true
  end
  local before = S:mode_of(holder)
  local at = S:hold_at(holder, S.raw_sequence)
  holder.holds = string.sub(holds, 1, at - 1) .. string.sub(holds, at + 9)
  holder.fresh = true
  local after = S:mode_of(holder)
  if before ~= after then
    -- The holder has no write hold left: this is a downgrade (rule 5).
    S.used = S.used - S:weight(before) + S:weight(after)
    S.token = math.max(S.token + 1, S.now)
  end
  return 'R' .. struct.pack('<I4', #holder.holds / 9) .. S:status(holder), before ~= after
end

return S:serve(function(S)
  S:set_operation()
  local expired = S:drop_if_expired()
  S:settle(S.waiter_count > 0)
  local reply, freed
  local holder = S:live()
  if holder then
    reply, freed = remove_hold(S, holder)
  else
    local ticket, waiter
    if S.waiter_count > 0 then
      ticket, waiter = S:own_waiter()
    end
    if ticket then
      S:remove_waiter(ticket, waiter)
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
