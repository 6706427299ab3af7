//! Keys as the last token of a subject.

/// Writes a key with letters, digits, `-`, `_` and `/`. All other bytes are `=` and two digits.
pub(crate) fn encode(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'/' => name.push(byte.into()),
            _ => name.push_str(&format!("={byte:02X}")),
        }
    }
    name
}

/// Reads a key. `None` if [`encode`] didn't write it.
pub(crate) fn decode(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|key| encode(key) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_and_are_one_token() {
        for key in [
            "a",
            "job:1",
            "a.b",
            "*",
            ">",
            "a b",
            "=3A",
            "é\u{0}\n",
            "/x/-_",
        ] {
            let name = encode(key);
            assert_eq!(decode(&name).as_deref(), Some(key), "{name}");
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_/=".contains(c);
            assert!(name.chars().all(is_plain), "{name}");
        }
        for name in ["=", "=3", "=3a", "=41", "a.b", "=FF", "=é"] {
            assert_eq!(decode(name), None, "{name}");
        }
    }
}
