-- Moves the end of the state if it must last until `needed_end`.
local moved = stored_end < needed_end
if moved then
  stored_end = needed_end + @SLACK@
end
