-- Acquire: hold, queue, or say why not.

strict = true

local mode, permits, lease, waits, till, deliver_before, floor
local hold_limit, waiter_limit, holder_limit, label
local wanted

local DAY = 86400000000 -- a floor may be this far ahead
local MAX_FLOOR = 2 ^ 53 - 2 ^ 32

local function read_request()
  set_operation()
  wanted = sub(argument, 33, 46)
  mode, permits, lease, waits, till, deliver_before, floor, hold_limit, waiter_limit,
    holder_limit, label = parse('<c1I4dBdddI4I4I4Bc0', argument, 47)
end

-- How the operation stands if it is live already.
local function report()
  local tenure = live()
  if tenure then
    return acquired(tenure)
  end
  if place_count > 0 then
    local ticket, place = crowd().own_place()
    if ticket and place.ends > now then
      return crowd().queued(ticket, place)
    end
  end
end

-- Whether it matters for this attempt who has expired. A reader's token does: it joins the period
-- of those who read, and of nobody who is gone.
local function depends_on_expiry()
  return place_count > 0 or mode == 'S' or spec ~= wanted or not fits(mode, permits)
    or tenure_count >= holder_limit
end

-- One more hold of an owner that holds already.
local function enter_again(tenure)
  if mode == 'X' and mode_of(tenure) == 'S' then
    return 'RD'
  end
  if #tenure.holds / 9 >= hold_limit then
    return 'RN'
  end
  tenure.holds = tenure.holds .. mode .. raw_sequence
  if tenure.flags % 2 ~= REVOKED then
    -- An inner hold with a shorter lease must not shorten the tenure.
    tenure.ends = math.max(tenure.ends, now + lease)
  end
  tenure.fresh = true
  cover_tenure(tenure.ends)
  return acquired(tenure)
end

-- Whether a newcomer may have what is free, after settling.
local function may_enter()
  return fits(mode, permits)
    and (place_count == 0 or crowd().all_away() or policy == 66 or (policy == 82 and mode == 'S'))
end

local function queue_or_give_up()
  if waits == 0 or till <= now then
    return crowd().held()
  end
  if place_count >= waiter_limit then
    if place_count > 0 then
      crowd().sweep_places()
    end
    if place_count >= waiter_limit then
      return 'RQ'
    end
  end
  local place = {
    session = session, raw = raw_sequence, owner = owner, mode = mode, permits = permits,
    floor = floor, ends = math.min(now + waiter_lease, till), till = till,
    listening = waits == 2, label = label,
  }
  return crowd().queued(crowd().enqueue(place), place)
end

return serve(function()
  read_request()
  if deliver_before < now or deliver_before > now + HORIZON then
    return 'RL'
  end
  if floor > math.min(math.max(now, token) + DAY, MAX_FLOOR) then
    return 'RF'
  end
  local freed = drop_if_expired()
  settle(depends_on_expiry(), freed)

  local mark = mark_of(session)
  local stale = mark and sequence <= mark.sequence
  -- Noted even if it only reports or is stale: a copy of this very sending may come as late as
  -- its own window allows, and must not outlive the mark.
  note(' ')
  local standing = report()
  if standing or stale then
    return standing or 'RS'
  end
  if spec ~= wanted then
    if tenure_count > 0 or place_count > 0 then
      return 'RM' .. spec
    end
    set_spec(wanted)
  end
  local tenure = tenure_of(holder_of())
  if tenure then
    return enter_again(tenure)
  end
  if may_enter() then
    if tenure_count >= holder_limit then
      return 'RH'
    end
    return acquired(grant(session, raw_sequence, owner, mode, permits, label, floor, now + lease))
  end
  return queue_or_give_up()
end)
