//! Names of Redis keys and channels.

use leasehold_api::{Key, SessionId};
use percent_encoding::{percent_decode, percent_encode_byte};

use super::call::Protocol;
use super::encoding::Writer;

impl Protocol {
    /// The Redis key of a lock: `PREFIX{ENCODED}`. Braces, `%` and control characters of the name
    /// are percent-encoded.
    pub fn key(&self, key: &Key) -> Vec<u8> {
        let mut out = Writer::with_capacity(self.usual_length(key));
        self.write_key(&mut out, key);
        out.finish()
    }

    /// The channel of a session's notifications, `PREFIXc:HASH`. Channel names are public (`PUBSUB CHANNELS`), and
    /// a session id authorizes releases and renewals, so the name contains only a hash of it.
    pub fn channel(&self, session: &SessionId) -> String {
        format!("{}c:{}", self.prefix, hashed(session))
    }

    /// The shard channel of a session's notifications about a key, `PREFIX{ENCODED}HASH`. It is in the slot of
    /// the lock's Redis key.
    pub fn shard_channel(&self, key: &Key, session: &SessionId) -> String {
        let mut out = Writer::with_capacity(self.usual_length(key) + HASH_LENGTH);
        self.write_key(&mut out, key);
        out.raw(hashed(session).as_bytes());
        // The encoding changes only single bytes below 128.
        String::from_utf8(out.finish()).expect("a key is UTF-8")
    }

    /// The length of a lock's Redis key if nothing has to be encoded.
    pub(super) fn usual_length(&self, key: &Key) -> usize {
        self.prefix.len() + key.as_str().len() + 2
    }

    /// Writes `PREFIX{ENCODED}`. The whole name of the lock is the cluster hash tag.
    pub(super) fn write_key(&self, out: &mut Writer, key: &Key) {
        out.raw(self.prefix.as_bytes()).u8(b'{');
        write_encoded(out, key.as_str());
        out.u8(b'}');
    }

    /// The pattern of the Redis keys of all locks that begin with this text.
    pub(super) fn pattern(&self, beginning: &str) -> Vec<u8> {
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
    pub(super) fn key_of(&self, name: &[u8]) -> Option<Key> {
        let encoded = name.strip_prefix(self.prefix.as_bytes())?;
        let encoded = encoded.strip_prefix(b"{")?.strip_suffix(b"}")?;
        let decoded = percent_decode(encoded).decode_utf8().ok()?;
        let key = Key::new(decoded).ok()?;
        // Another spelling of the same name is the key of no lock.
        (self.key(&key) == name).then_some(key)
    }
}

const HASH_LENGTH: usize = 16;

/// The first hexadecimal digits of the session's hash.
fn hashed(session: &SessionId) -> String {
    let digest = sha1_smol::Sha1::from(session.as_bytes()).digest();
    let mut digits = digest.to_string();
    digits.truncate(HASH_LENGTH);
    digits
}

fn write_encoded(out: &mut Writer, name: &str) {
    let mut rest = name.as_bytes();
    while let Some(plain) = rest.iter().position(|byte| is_encoded(*byte)) {
        out.raw(&rest[..plain]);
        out.raw(percent_encode_byte(rest[plain]).as_bytes());
        rest = &rest[plain + 1..];
    }
    out.raw(rest);
}

/// Whether a byte must be encoded: braces, the escape character and control characters.
const fn is_encoded(byte: u8) -> bool {
    matches!(byte, b'{' | b'}' | b'%' | 0..=0x1f | 0x7f)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::script::ScriptSettings;

    fn names(prefix: &str) -> Protocol {
        Protocol::new(prefix, ScriptSettings::default()).expect("a good prefix")
    }

    fn stored(prefix: &str, name: &str) -> Vec<u8> {
        names(prefix).key(&Key::new(name).expect("a good key"))
    }

    #[test]
    fn special_characters_are_encoded() {
        assert_eq!(stored("p:", "invoice:42"), b"p:{invoice:42}");
        let special = stored("p:", "a{b}\r\n%\u{7f}*?");
        assert_eq!(special, b"p:{a%7Bb%7D%0D%0A%25%7F*?}");
    }

    #[test]
    fn another_spelling_is_the_key_of_no_lock() {
        for name in [
            "p:{%7b}", "p:{%41}", "p:{%}", "p:{%4}", "p:{%zz}", "p:{100%}", "p:{a{b}", "p:{a}b}",
            "p:{\n}", "p:{%FF}", "p:{}", "p:{a", "p:a}", "q:{a}",
        ] {
            assert_eq!(names("p:").key_of(name.as_bytes()), None, "{name:?}");
        }
        assert_eq!(names("p:").key_of(b"p:{\xff}"), None);
    }

    #[test]
    fn braces_in_the_prefix_are_refused() {
        for prefix in ["x{y", "x}y"] {
            assert!(Protocol::new(prefix, ScriptSettings::default()).is_err());
        }
    }

    #[test]
    fn channel_is_a_prefix_of_the_session_sha1() {
        // printf '\0%.0s' $(seq 16) | sha1sum
        let session = SessionId::from_bytes([0; 16]);
        assert_eq!(names("p:").channel(&session), "p:c:e129f27c5103bc5c");
        let key = Key::new("invoice é}").expect("a good key");
        let shard = names("p:").shard_channel(&key, &session);
        assert_eq!(shard, "p:{invoice é%7D}e129f27c5103bc5c");
    }

    proptest! {
        #[test]
        fn every_name_is_one_hash_tag_and_decodes(name in "\\PC{1,40}|[{}%\\x00-\\x20]{1,20}") {
            let encoded = stored("p:", &name);
            let tag = &encoded[b"p:{".len()..encoded.len() - 1];
            let harmful = tag.iter().any(|b| matches!(b, b'{' | b'}' | 0..=0x1f));
            prop_assert!(!harmful);
            let decoded = names("p:").key_of(&encoded);
            prop_assert_eq!(decoded.as_ref().map(Key::as_str), Some(&*name));
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
