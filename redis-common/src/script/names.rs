//! Names of Redis keys and channels.

use std::fmt::Write as _;

use leasehold_api::{InvalidInput, Key, SessionId};

use super::encoding::Writer;

/// The checked prefix of all names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// Refuses braces in the prefix: they would move the cluster hash tag, and the scripts take the
    /// part of a key before its first brace as the prefix.
    pub(crate) fn new(prefix: &str) -> Result<Self, InvalidInput> {
        if prefix.contains(['{', '}']) {
            let problem = "must not contain braces";
            return Err(InvalidInput::setting("key prefix", problem));
        }
        Ok(Self {
            prefix: prefix.into(),
        })
    }

    /// The length of a lock's Redis key if nothing has to be encoded.
    pub(crate) fn usual_length(&self, key: &Key) -> usize {
        self.prefix.len() + key.as_str().len() + 2
    }

    /// Writes `PREFIX{ENCODED}`. The whole name of the lock is the cluster hash tag.
    pub(crate) fn write_key(&self, out: &mut Writer, key: &Key) {
        out.raw(self.prefix.as_bytes()).u8(b'{');
        write_encoded(out, key.as_str());
        out.u8(b'}');
    }

    /// The pattern of the Redis keys of all locks that begin with this text.
    pub(crate) fn pattern(&self, beginning: &str) -> Vec<u8> {
        let mut out = Writer::with_capacity(self.prefix.len() + 2 * beginning.len() + 2);
        out.raw(self.prefix.as_bytes()).u8(b'{');
        write_encoded(&mut out, beginning);
        let mut pattern = Vec::new();
        for byte in out.finish() {
            if matches!(byte, b'*' | b'?' | b'[' | b']' | b'^' | b'\\') {
                pattern.push(b'\\');
            }
            pattern.push(byte);
        }
        pattern.push(b'*');
        pattern
    }

    /// The lock with this Redis key, if one can have it.
    pub(crate) fn key_of(&self, name: &[u8]) -> Option<Key> {
        let encoded = name.strip_prefix(self.prefix.as_bytes())?;
        let encoded = encoded.strip_prefix(b"{")?.strip_suffix(b"}")?;
        let mut bytes = Vec::with_capacity(encoded.len());
        let mut rest = encoded.iter();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'%' => digit(*rest.next()?)? << 4 | digit(*rest.next()?)?,
                plain => *plain,
            });
        }
        let key = Key::new(String::from_utf8(bytes).ok()?).ok()?;
        // Another spelling of the same name is the key of no lock.
        let mut out = Writer::with_capacity(name.len());
        self.write_key(&mut out, &key);
        (out.finish() == name).then_some(key)
    }

    /// Returns `PREFIXc:HASH`. Channel names are public (`PUBSUB CHANNELS`), and a session id
    /// authorizes releases and renewals, so the name contains only a hash of it.
    pub(crate) fn channel(&self, session: &SessionId) -> String {
        format!("{}c:{}", self.prefix, hashed(session))
    }

    /// Returns `PREFIX{ENCODED}HASH`, which is in the slot of the lock's Redis key.
    pub(crate) fn shard_channel(&self, key: &Key, session: &SessionId) -> String {
        let mut out = Writer::with_capacity(self.usual_length(key) + HASH_LENGTH);
        self.write_key(&mut out, key);
        out.raw(hashed(session).as_bytes());
        // The encoding changes only single bytes below 128.
        String::from_utf8(out.finish()).expect("a key is UTF-8")
    }
}

const HASH_LENGTH: usize = 16;

/// The first half of the session's hash, in hexadecimal digits.
fn hashed(session: &SessionId) -> String {
    let digest = sha1_smol::Sha1::from(session.as_bytes()).digest().bytes();
    let mut out = String::with_capacity(HASH_LENGTH);
    for byte in &digest[..HASH_LENGTH / 2] {
        write!(out, "{byte:02x}").expect("writing to a String never fails");
    }
    out
}

fn write_encoded(out: &mut Writer, name: &str) {
    let mut rest = name.as_bytes();
    while let Some(plain) = rest.iter().position(|byte| is_encoded(*byte)) {
        let byte = rest[plain];
        out.raw(&rest[..plain]).u8(b'%');
        out.u8(HEX[usize::from(byte >> 4)]);
        out.u8(HEX[usize::from(byte & 15)]);
        rest = &rest[plain + 1..];
    }
    out.raw(rest);
}

fn digit(byte: u8) -> Option<u8> {
    let digit = HEX.iter().position(|digit| *digit == byte)?;
    u8::try_from(digit).ok()
}

/// Whether a byte must be encoded: braces, the escape character and control characters.
const fn is_encoded(byte: u8) -> bool {
    matches!(byte, b'{' | b'}' | b'%' | 0..=0x1f | 0x7f)
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> Names {
        Names::new("leasehold:").expect("a good prefix")
    }

    fn key(name: &str) -> Vec<u8> {
        stored("leasehold:", name)
    }

    fn stored(prefix: &str, name: &str) -> Vec<u8> {
        let names = Names::new(prefix).expect("a good prefix");
        let mut out = Writer::with_capacity(0);
        names.write_key(&mut out, &Key::new(name).expect("a good key"));
        out.finish()
    }

    #[test]
    fn plain_name_is_not_encoded() {
        assert_eq!(key("invoice:42"), b"leasehold:{invoice:42}");
    }

    #[test]
    fn special_characters_are_encoded() {
        assert_eq!(
            key("a{b}\r\n%\u{7f}*?"),
            b"leasehold:{a%7Bb%7D%0D%0A%25%7F*?}"
        );
    }

    #[test]
    fn braces_in_the_prefix_are_refused() {
        assert!(Names::new("x{y").is_err());
        assert!(Names::new("x}y").is_err());
    }

    #[test]
    fn channel_is_a_prefix_of_the_session_sha1() {
        // printf '\0%.0s' $(seq 16) | sha1sum
        let session = SessionId::from_bytes([0; 16]);
        assert_eq!(names().channel(&session), "leasehold:c:e129f27c5103bc5c");
        let key = Key::new("invoice é}").expect("a good key");
        let shard = names().shard_channel(&key, &session);
        assert_eq!(shard, "leasehold:{invoice é%7D}e129f27c5103bc5c");
    }

    fn decode(encoded: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = encoded;
        while let [first, tail @ ..] = rest {
            rest = tail;
            if *first == b'%' {
                let hex = std::str::from_utf8(&tail[..2]).expect("hex digits");
                out.push(u8::from_str_radix(hex, 16).expect("hex digits"));
                rest = &tail[2..];
            } else {
                out.push(*first);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn every_name_is_one_hash_tag_and_decodes(name in "\\PC{1,40}|[{}%\\x00-\\x20]{1,20}") {
            let encoded = key(&name);
            let tag = &encoded[b"leasehold:{".len()..encoded.len() - 1];
            let harmful = tag.iter().any(|b| matches!(b, b'{' | b'}' | 0..=0x1f));
            prop_assert!(!harmful);
            prop_assert_eq!(decode(tag), name.as_bytes());
        }

        /// The hardest case: prefix and key are the same text together.
        #[test]
        fn prefix_and_key_can_be_told_apart(
            text in "[a-z:%\\PC&&[^{}]]{1,40}",
            at in any::<[proptest::sample::Index; 2]>(),
        ) {
            let ends: Vec<usize> = text.char_indices().map(|(end, _)| end).collect();
            let [one, two] = at.map(|at| text.split_at(*at.get(&ends)));
            let is_same = stored(one.0, one.1) == stored(two.0, two.1);
            prop_assert_eq!(is_same, one == two);
        }
    }
}
