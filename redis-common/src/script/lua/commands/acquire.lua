-- Acquire: holds the key, queues for it, or says why not.

S.strict = true

-- Adds a hold to an owner that holds already.
local function enter_again(S, tenure, mode, lease, limit)
  if mode == 'X' and S:mode_of(tenure) == 'S' then
    return 'RD'
  end
  if #tenure.holds / 9 >= limit then
    return 'RN'
  end
  tenure.holds = tenure.holds .. mode .. S.raw_sequence
  if tenure.flags % 2 ~= @REVOKED@ then
    -- An inner hold with a shorter lease must not shorten the tenure.
    tenure.ends = math.max(tenure.ends, S.now + lease)
  end
  tenure.fresh = true
  S:cover(tenure.ends + @RETENTION@)
  return S:acquired(tenure)
end

-- Whether a newcomer may hold the key now, after settling.
local function may_enter(S, mode, permits)
  return S:fits(mode, permits) and (
    S.place_count == 0 or S:all_away() or S.policy == @BARGING@
    or (S.policy == @READERS_FIRST@ and mode == 'S')
  )
end

local function enqueue(S, place, limit)
  if S.place_count >= limit then
    S:sweep_places()
    if S.place_count >= limit then
      return 'RQ'
    end
  end
  place.session, place.raw, place.owner = S.session, S.raw_sequence, S.owner
  place.ends = math.min(S.now + S.waiter_lease, place.till)
  return S:queued(S:enqueue(place), place)
end

return S:serve(function(S)
  S:set_operation()
  local wanted = string.sub(S.argument, 33, 46)
  local mode, permits, lease, waits, till, deliver_before, floor, hold_limit, waiter_limit,
    holder_limit, label = struct.unpack('<c1I4dBdddI4I4I4Bc0', S.argument, 47)
  if deliver_before < S.now or deliver_before > S.now + @HORIZON@ then
    return 'RL'
  end
  if floor > math.min(math.max(S.now, S.token) + @MAX_FLOOR_AHEAD@, @MAX_FLOOR@) then
    return 'RF'
  end
  local freed = S:drop_if_expired()
  -- A reader's token depends on expiry: the reader joins the period of live readers only.
  local depends = S.place_count > 0 or mode == 'S' or S.spec ~= wanted or not S:fits(mode, permits)
    or S.tenure_count >= holder_limit
  S:settle(depends, freed)

  local mark = S:mark_of(S.session)
  local stale = mark and S.sequence <= mark.sequence
  -- Also for an acquire that only reports or is stale: a copy of this request may arrive as late as
  -- its delivery window allows, and must not outlive the mark.
  S:note(' ')
  local standing = S:report()
  if standing or stale then
    return standing or 'RS'
  end
  if S.spec ~= wanted then
    if S.tenure_count > 0 or S.place_count > 0 then
      return 'RM' .. S.spec
    end
    S:set_spec(wanted)
  end
  local tenure = S:tenure_of(S:holder_of())
  if tenure then
    return enter_again(S, tenure, mode, lease, hold_limit)
  end
  if may_enter(S, mode, permits) then
    if S.tenure_count >= holder_limit then
      return 'RH'
    end
    tenure = S:grant(S.session, S.raw_sequence, S.owner, mode, permits, label, floor, S.now + lease)
    return S:acquired(tenure)
  end
  if waits == 0 or till <= S.now then
    return S:held()
  end
  local place = {
    mode = mode, permits = permits, floor = floor, till = till, listening = waits == 2,
    label = label,
  }
  return enqueue(S, place, waiter_limit)
end)
