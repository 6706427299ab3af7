-- Granting: a hold in a new tenure or in its owner's.

-- Whether a new tenure shares the period of `others` tenures. A floor above the stored token
-- proves that a token was lost. One equal to it comes from a client that has read in this very
-- period: a new period would get those refused who still read in it.
local function joins(mode, floor, others)
  return S.kind == @RW_LOCK@ and mode == 'S' and others > 0 and floor <= S.token
end

local function token_after(floor)
  return math.max(S.token + 1, S.now, floor + 1)
end

local function grant(to_session, raw, to_owner, mode, permits, label, floor, ends)
  local holder = to_session .. (S.kind == @SEMAPHORE@ and raw or to_owner)
  S.dirty = true
  cover(ends + @RETENTION@)
  local tenure = tenure_of(holder)
  if tenure and tenure.ends <= S.now then
    -- Among many holders an expired one may not have been looked at yet; a grant to its owner
    -- must not bring it back.
    remove_tenure(holder, tenure)
    tenure = nil
  end
  if tenure then
    -- A queued read of an owner that has come to read by another attempt.
    tenure.holds = tenure.holds .. mode .. raw
    if tenure.flags % 2 ~= @REVOKED@ then
      tenure.ends = math.max(tenure.ends, ends)
    end
    tenure.fresh = true
    return tenure
  end
  if not joins(mode, floor, S.tenure_count) then
    S.token = token_after(floor)
  end
  if S.tenure_count == 0 or ends < S.earliest then
    S.earliest = ends
  end
  S.used = S.used + weight(mode, permits)
  S.tenure_count = S.tenure_count + 1
  tenure = { ends = ends, flags = 0, label = label, holds = mode .. raw, fresh = true }
  if S.kind == @SEMAPHORE@ then
    tenure.flags, tenure.token, tenure.permits = @OWN_TOKEN@, S.token, permits
  end
  S.T[holder] = tenure
  if S.form == 'crowded' then
    crowd().add_slot(holder, tenure)
  end
  return tenure
end

