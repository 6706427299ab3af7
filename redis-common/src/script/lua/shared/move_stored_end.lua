-- Moves the end of the state, so that the watermark of this release outlives its window.
local moved = stored_end < watermark_end
if moved then
  stored_end = watermark_end + @SLACK@
end
