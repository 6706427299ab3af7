-- End of the only hold of the only tenure, exclusive, under the fair policy, while others wait and
-- the first of them wants the key exclusively: it is told that the key is its own.
if @PUSH@ and type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.byte(stored, 50) == 1 and string.byte(stored, 51) > 0
  and string.byte(stored, 4) ~= @SEMAPHORE@ and string.byte(stored, 5) == @FAIR@
then
  local argument = ARGV[1]
  local session, sequence, owner = struct.unpack('<c16dc8', argument)
  local token, stored_end, earliest, last_scan, _, places, marks, holder, ends, flags, _, holds, at =
    struct.unpack('<ddddBBBc24dBBc0I4c0', stored, 18)
  local queue_at = at + 33 * marks
  local next_ticket, _, to, raw, to_owner, mode, _, floor, claim_ends, _, place_flags, _,
    label, behind = struct.unpack('<ddc16c8c8c1I4dddBBBc0', stored, queue_at)
  local usable = stored_end > now and earliest > now and ends > now and flags < @OWN_TOKEN@
    and holder == session .. owner and #holds == 9 and string.byte(holds) == @EXCLUSIVE@
    and string.sub(holds, 2) == string.sub(argument, 17, 24)
    and mode == 'X' and claim_ends > now and place_flags == @LISTENING@
  if usable and places > 1 then
    local after_ends, _, after_flags = struct.unpack('<ddB', stored, behind + 53)
    usable = after_ends > now and after_flags < @AWAY@ -- or it would go, or be passed
  end
  local mark_till = now + 2 * @HORIZON@
  local mark, without = struct.pack('<c16ddc1', session, sequence, mark_till, 'E'), ''
  local own = usable and marks > 0 and string.find(stored, session, at, true)
  if own and own < queue_at and (own - at) % 33 ~= 0 then
    usable = false -- not the beginning of a mark
  elseif own and own < queue_at then
    marks = marks - 1
    local seen, seen_till, why = struct.unpack('<ddc1', stored, own + 16)
    if seen_till > now and seen > sequence then
      mark = struct.pack('<c16ddc1', session, seen, mark_till, why)
    end
    without = string.sub(stored, at, own - 1) .. string.sub(stored, own + 33, queue_at - 1)
  elseif marks > 0 then
    without = string.sub(stored, at, queue_at - 1)
  end
  if usable and marks + 1 + places <= @THIN_RECORDS@ then
    token = math.max(token + 1, now, floor + 1)
    local covered, old_end = math.max(mark_till, claim_ends + @RETENTION@), stored_end
    if stored_end < covered then
      stored_end = covered + math.floor(@RETENTION@ / 8)
    end
    local queue = ''
    if places > 1 then
      queue = struct.pack('<d', next_ticket) .. string.sub(stored, behind)
    end
    local value = string.sub(stored, 1, 17)
      .. struct.pack('<ddddBBBc16c8dBBc0I4c1c8', token, stored_end, claim_ends, last_scan, 1,
        places - 1, marks + 1, to, to_owner, claim_ends, 0, #label, label, 9, 'X', raw)
      .. mark .. without .. queue
    local answer
    if stored_end ~= old_end then
      answer = redis.pcall('SET', KEYS[1], value, 'PXAT', math.ceil(stored_end / 1000) + 1000)
    else
      answer = redis.pcall('SET', KEYS[1], value, 'KEEPTTL')
    end
    if answer.ok then
      local channel = string.match(KEYS[1], '^[^{]*') .. 'c:'
        .. string.sub(redis.sha1hex(to), 1, 16)
      local listeners = redis.pcall('PUBLISH', channel,
        struct.pack('<dc1c8dd', now, 'G', raw, token, claim_ends - now))
      -- An error means: unknown, which counts as listening.
      if type(listeners) == 'table' or listeners > 0 then
        return struct.pack('<c1dc1I4', '=', now, 'R', 0)
      end
      -- Nobody has heard it: as if nothing had been done, but for the general way to find out.
      redis.call('SET', KEYS[1], stored, 'PXAT', math.ceil(old_end / 1000) + 1000)
    end
  end
end

