-- Note: leaves a note on the key, if the operation holds it and the note is newer than the one that stands.

return S:serve(function(S)
  local version, keep, bytes = struct.unpack('<I4dBc0', S.argument, 33)
  local expired = S:drop_if_expired()
  S:settle(S.waiter_count > 0)
  local holder = S:live()
  if not holder then
    return 'L' .. S:reason(expired) .. S:view_note(S:standing_note())
  end
  local token, note = S:token_of(holder), S:standing_note()
  if not note or note.token < token or note.token == token and note.version < version then
    note = { token = token, version = version, ends = S.now + keep, bytes = bytes }
    S:put_note(note)
  end
  return 'N' .. S:view_note(note)
end)
