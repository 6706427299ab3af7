-- Acquire: takes a hold, enters the queue, or answers why it can't.

S.acquires = true

-- Adds a hold to the owner's holder.
local function reenter(S, holder, mode, lease, limit)
  if mode == 'X' and S:mode_of(holder.holds) == 'S' then
    return 'RD'
  end
  if #holder.holds / 9 >= limit then
    return 'RN'
  end
  holder.holds = holder.holds .. mode .. S.raw_sequence
  if holder.flags % 2 ~= @REVOKED@ then
    -- An inner hold with a shorter lease must not shorten the holder.
    holder.ends = math.max(holder.ends, S.now + lease)
  end
  S:put_holder(holder)
  S:cover(holder.ends + @RETENTION@)
  return S:acquired(holder)
end

-- Whether a new holder fits and may pass the queue, after settling.
local function may_enter(S, mode, permits)
  return S:fits(mode, permits) and S.waiter_count == S.unreachable
end

return S:serve(function(S)
  local wanted = string.sub(S.argument, 33, 45)
  local mode, permits, lease, waits, wait_until, deliver_before, floor, hold_limit, waiter_limit,
    holder_limit, label = struct.unpack('<c1I4dBdddI4I4I4Bc0', S.argument, 46)
  if deliver_before < S.now or deliver_before > S.now + @DELIVERY_WINDOW@ then
    return 'RL'
  end
  if floor > math.min(math.max(S.now, S.token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@) then
    return 'RF'
  end
  S:drop_if_expired()
  -- A reader joins the epoch of live readers only, so its token depends on what has expired.
  local depends = S.waiter_count > 0 or mode == 'S' or S.spec ~= wanted or not S:fits(mode, permits)
    or S.holder_count >= holder_limit
  S:settle(depends)

  local seen = S:watermark_of(S.session)
  local stale = seen and S.sequence <= seen
  -- Also for an acquire that is stale or only reports. A copy of this request may arrive until the
  -- end of its delivery window, and the watermark must last that long.
  S:raise_watermark(@REASON_NONE@)
  local reported = S:report()
  if reported or stale then
    return reported or 'RS'
  end
  if S.spec ~= wanted then
    if S.holder_count > 0 or S.waiter_count > 0 then
      return 'RM' .. S.spec
    end
    S:set_spec(wanted)
  end
  local holder = S:holder_of(S:holder_id())
  if holder then
    return reenter(S, holder, mode, lease, hold_limit)
  end
  if may_enter(S, mode, permits) then
    if S.holder_count >= holder_limit then
      return 'RH'
    end
    holder = S:grant(S.session, S.raw_sequence, S.owner, mode, permits, label, floor, S.now + lease)
    return S:acquired(holder)
  end
  if waits == 0 or wait_until <= S.now then
    return S:contention()
  end
  if S.waiter_count >= waiter_limit then
    S:sweep_waiters()
  end
  if S.waiter_count >= waiter_limit then
    return 'RQ'
  end
  local waiter = {
    session = S.session, raw = S.raw_sequence, owner = S.owner, mode = mode, permits = permits,
    floor = floor, lease = lease, ends = math.min(S.now + S.waiter_lease, wait_until),
    wait_until = wait_until, flags = waits == 2 and @LISTENING@ or 0, marks = 0, label = label,
  }
  S:enqueue(waiter)
  return S:queued(waiter)
end)
