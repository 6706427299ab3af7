-- Release of the only hold of the only holder, while nobody waits.
if fast_path then
  first = redis.pcall('GET', KEYS[1])
end
local stored = first
if type(stored) == 'string' and string.sub(stored, 1, 3) == @MAGIC@
  and string.sub(stored, 50, 51) == '\1\0' -- one holder, no waiter
then
  local session, sequence, owner = struct.unpack('<c16dc8', ARGV[1])
  local head, stored_end, _, _, _, _, watermarks, _, of, owned_by, ends, flags, _, holds, at =
    struct.unpack('<c25dddBBBHc16c8dBBc0I4c0', stored)
  local raw = string.sub(ARGV[1], 17, 24)
  if flags == @OWN_TOKEN@ then
    owner, at = raw, at + 12 -- a permit's holder_id is the attempt; its token and weight follow
  end
  if stored_end > now and watermarks < @PACKED_RECORDS@
    and of == session and owned_by == owner and ends > now and flags <= @OWN_TOKEN@
    and #holds == 9 and string.sub(holds, 2) == raw
  then
    local others, left, seen, why, till = '', 0, sequence, 'E', now + 2 * @DELIVERY_WINDOW@
    local own = watermarks > 0 and string.find(stored, session, at, true)
    local usable = not own or (own - at) % 33 == 0
    if own and usable then
      local highest, until_, before = struct.unpack('<ddc1', stored, own + 16)
      if until_ > now and highest > sequence then
        seen, why = highest, before
      end
      left = watermarks - 1
      if left > 0 then
        others = string.sub(stored, at, own - 1) .. string.sub(stored, own + 33)
      end
    elseif watermarks > 0 then
      others, left = string.sub(stored, at), watermarks
    end
    -- The oldest are last.
    while usable and left > 0 and struct.unpack('<d', others, 33 * left - 8) <= now do
      others, left = string.sub(others, 1, -34), left - 1
    end
    local expires = stored_end < till
    if expires then
      stored_end = till + @SLACK@
    end
    if usable then
      local value = struct.pack('<c25dc16BBBHc16ddc1', head, stored_end, string.sub(stored, 34, 49),
        0, 0, left + 1, 0, session, seen, till, why) .. others
      local written
      @SET_VALUE@
      if written then
        return struct.pack('<c1dc1I4', '=', now, 'R', 0)
      end
    end
  end
end

