//! The slots of a cluster: which slot a key has, and where the server says that it is.

use super::url::Address;

pub(crate) const SLOTS: u16 = 16_384;

/// Consecutive slots of a cluster, and where their primary listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// The host of the primary: a name or an IP address, without brackets. An empty host is the
    /// host of the node that was asked.
    pub host: String,
    /// The port of the primary.
    pub port: u16,
}

/// Where a node sends a command that it didn't execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is on another node.
    Moved(Address),
    /// The slot is being moved. This command goes to another node, right behind `ASKING`.
    Ask(Address),
}

impl Redirect {
    /// Reads an error reply of the node at `asked`, such as `MOVED 3999 127.0.0.1:6381`.
    pub(crate) fn parse(reply: &str, asked: &Address) -> Option<Self> {
        let mut words = reply.split_ascii_whitespace();
        let (code, _slot, address) = (words.next()?, words.next()?, words.next()?);
        let (host, port) = address.rsplit_once(':')?;
        let to = Address::told(host, port.parse().ok()?, asked);
        match code {
            "MOVED" => Some(Self::Moved(to)),
            "ASK" => Some(Self::Ask(to)),
            _ => None,
        }
    }
}

/// The slot of a Redis key. If the key has a hash tag, only the tag counts.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hash_tag(key)) % SLOTS
}

/// The part between the first `{` and the next `}`, unless it is empty.
fn hash_tag(key: &[u8]) -> &[u8] {
    let find = |from: &[u8], byte| from.iter().position(|it| *it == byte);
    let Some(start) = find(key, b'{') else {
        return key;
    };
    let rest = &key[start + 1..];
    match find(rest, b'}') {
        Some(end) if end > 0 => &rest[..end],
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(host: &str, port: u16) -> Address {
        let (host, tls) = (host.into(), false);
        Address::Tcp { host, port, tls }
    }

    #[test]
    fn slot_is_that_of_the_hash_tag() {
        // redis-cli CLUSTER KEYSLOT
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("leasehold:{foo}", 12_182),
            ("{}foo", 9_500),
            ("foo{{bar}}zap", 4_015),
            ("}{", 12_793),
            ("a{b", 13_340),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn redirect_names_a_node() {
        let asked = node("10.0.0.1", 7_000);
        for (reply, redirect) in [
            (
                "MOVED 3999 127.0.0.1:6381",
                Some(Redirect::Moved(node("127.0.0.1", 6_381))),
            ),
            ("ASK 1 ::1:6381", Some(Redirect::Ask(node("::1", 6_381)))),
            (
                "MOVED 3999 :6381",
                Some(Redirect::Moved(node("10.0.0.1", 6_381))),
            ),
            ("ASK 1 ?:6381", Some(Redirect::Ask(node("10.0.0.1", 6_381)))),
            ("MOVED 3999", None),
            ("MOVED 3999 a:b", None),
            ("TRYAGAIN Multiple keys request during rehashing", None),
        ] {
            assert_eq!(Redirect::parse(reply, &asked), redirect, "{reply}");
        }
    }

    proptest! {
        #[test]
        fn redirect_is_read_or_none(
            reply in prop_oneof![
                "(MOVED|ASK|ERR) [0-9]{0,6} [a-z0-9.:?\\[\\]]{0,20}:[0-9]{0,6}",
                any::<String>(),
            ],
        ) {
            if let Some(redirect) = Redirect::parse(&reply, &node("10.0.0.1", 7_000)) {
                let (Redirect::Moved(to) | Redirect::Ask(to)) = redirect;
                let is_named = |host: &str| !matches!(host, "" | "?");
                prop_assert!(matches!(&to, Address::Tcp { host, .. } if is_named(host)), "{reply}");
            }
        }
    }
}
