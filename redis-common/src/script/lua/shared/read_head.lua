-- Reads `head`, the head of a hash with one holder. `waiters_end` is a lower bound of the ends of all waiters.
local kept, waiting, token, stored_end, earliest, next_ticket, first_ticket, first_end, waiters_end,
  holder_id, holder_end, flags, holder_label, holds =
  struct.unpack('<c45I4dddddddc24dBBc0I4c0', head)
