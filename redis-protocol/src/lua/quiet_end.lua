-- End of the only hold of the only tenure, while nobody waits.
if quiet then
  first = redis.pcall('GET', KEYS[1])
end
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.byte(stored, 50) == 1 and string.byte(stored, 51) == 0 -- one tenure, no place
then
  local argument = ARGV[1]
  local session, sequence, owner = struct.unpack('<c16dc8', argument)
  local stored_end, _, _, _, _, marks, holder, ends, flags, _, holds, at =
    struct.unpack('<dddBBBc24dBBc0I4c0', stored, 26)
  if stored_end > now and marks <= QUIET_MARKS
    and holder == session .. owner and ends > now and flags < @OWN_TOKEN@
    and #holds == 9 and string.sub(holds, 2) == string.sub(argument, 17, 24)
  then
    local others, left, seen, why, till = '', 0, sequence, 'E', now + 2 * @HORIZON@
    for from = at, #stored, 33 do
      if string.sub(stored, from, from + 15) ~= session then
        others, left = others .. string.sub(stored, from, from + 32), left + 1
      else
        local highest, until_, before = struct.unpack('<ddc1', stored, from + 16)
        if until_ > now and highest > sequence then
          seen, why = highest, before
        end
      end
    end
    local expires = stored_end < till
    if expires then
      stored_end = till + math.floor(@RETENTION@ / 8)
    end
    local value = string.sub(stored, 1, 25)
      .. struct.pack('<dc16BBBc16ddc1', stored_end, string.sub(stored, 34, 49), 0, 0, left + 1,
        session, seen, till, why) .. others
    local answer
    if expires then
      answer = redis.pcall('SET', KEYS[1], value, 'PXAT', math.ceil(stored_end / 1000) + 1000)
    else
      answer = redis.pcall('SET', KEYS[1], value, 'KEEPTTL')
    end
    if answer.ok then
      return struct.pack('<c1dc1I4', '=', now, 'R', 0)
    end
  end
end

