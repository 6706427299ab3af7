-- Release of the only hold of the only holder, exclusive and under the fair policy, while the first
-- waiter wants the key exclusively: grants it the key and publishes that.
if @PUSH@ and type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.byte(stored, 50) == 1 and string.byte(stored, 51) > 0
  and string.byte(stored, 4) ~= @SEMAPHORE@ and string.byte(stored, 5) == @FAIR@
then
  local argument = ARGV[1]
  local session, sequence, owner = struct.unpack('<c16dc8', argument)
  local token, stored_end, earliest, last_scan, _, waiters, watermarks, skip, holder_id, ends, flags,
    held_by, holds, at = struct.unpack('<ddddBBBHc24dBBc0I4c0', stored, 18)
  local behind = at + 33 * watermarks -- the watermarks
  local _, to, raw, to_owner, mode, _, floor, offer_ends, _, waiter_flags, _, label, next_at =
    struct.unpack('<dc16c8c8c1I4dddBBBc0', stored, behind + skip)
  local usable = @ONE_EXCLUSIVE_HOLD@ and holder_id == session .. owner
    and string.sub(holds, 2) == string.sub(argument, 17, 24)
    and mode == 'X' and offer_ends > now and waiter_flags == @LISTENING@
  if usable and waiters > 1 then
    local after_ends, _, after_flags = struct.unpack('<ddB', stored, next_at + 53)
    usable = after_ends > now and after_flags < @UNREACHABLE@ -- else it would be dropped or passed over
  end
  local seen, why, watermark_till = sequence, 'E', now + 2 * @DELIVERY_WINDOW@
  local own = usable and watermarks > 0 and string.find(stored, session, at, true)
  if own and own >= behind then
    own = false
  elseif own then
    usable = (own - at) % 33 == 0 -- the start of a watermark
    local highest, till, before = struct.unpack('<ddc1', stored, own + 16)
    if till > now and highest > sequence then
      seen, why = highest, before
    end
  end
  if usable and (own and 0 or 1) + watermarks + waiters <= @PACKED_RECORDS@ then
    local watermark = struct.pack('<c16ddc1', session, seen, watermark_till, why)
    token = math.max(token + 1, now, floor + 1)
    local covered, old_end = math.max(watermark_till, offer_ends + @RETENTION@), stored_end
    if stored_end < covered then
      stored_end = covered + @SLACK@
    end
    -- If the next holder's holder has the same size, it overwrites this one. The granted place then
    -- stays behind as a gap, until closing the gap is worth a full write.
    local in_place = own and waiters > 1 and #label == #held_by and stored_end == old_end
      and next_at - behind <= @MAX_SKIP@
    skip = in_place and next_at - behind or 0
    if not own then
      watermarks = watermarks + 1
    end
    local holder = struct.pack('<ddddBBBHc16c8dBBc0I4c1c8', token, stored_end, offer_ends,
      last_scan, 1, waiters - 1, watermarks, skip, to, to_owner, offer_ends, 0, #label, label, 9, 'X', raw)
    local written
    if in_place then
      written = type(redis.pcall('SETRANGE', KEYS[1], '17', holder)) == 'number'
      if written then
        redis.call('SETRANGE', KEYS[1], own - 1, watermark)
      end
    else
      local value = string.sub(stored, 1, 17) .. holder .. watermark
        .. string.sub(stored, at, (own or behind) - 1)
        .. string.sub(stored, own and own + 33 or behind, behind - 1)
        .. (waiters > 1 and string.sub(stored, next_at) or '')
      local expires = stored_end ~= old_end
      @SET_VALUE@
    end
    if written then
      local channel = string.match(KEYS[1], '^[^{]*') .. 'c:'
        .. string.sub(redis.sha1hex(to), 1, 16)
      local listeners = redis.pcall('PUBLISH', channel,
        struct.pack('<dc1c8dd', now, 'G', raw, token, offer_ends - now))
      -- After an error nobody knows, which counts as listening.
      if type(listeners) == 'table' or listeners > 0 then
        return struct.pack('<c1dc1I4', '=', now, 'R', 0)
      end
      -- Nobody listens: undo everything. The general part finds that out again.
      redis.call('SET', KEYS[1], stored, 'PXAT', math.ceil(old_end / 1000) + 1000)
    end
  end
end

