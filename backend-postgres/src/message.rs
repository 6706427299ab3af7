//! Messages as payloads of `NOTIFY`, and the names of channels.
//!
//! A payload is a number that makes it unique within its transaction, a space, and the text of the
//! messages. Postgres drops equal payloads of one transaction.

use leasehold_api::machine::Message;
use leasehold_api::{ClockId, Notification, ServerTime, SessionId};
use leasehold_store::messages;

/// A payload has less than 8,000 bytes. A message takes at most 64.
const MESSAGES: usize = 100;

/// The channel of a session, and the number of the advisory lock that its listener holds. Both are
/// derived from the session, which is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) lock: i64,
}

impl Channel {
    pub(crate) fn of(session: &SessionId) -> Self {
        let mut hash = sha1_smol::Sha1::from(b"leasehold ");
        hash.update(session.as_bytes());
        let bytes = hash.digest().bytes();
        let (lock, _) = bytes.split_first_chunk().expect("a hash has 20 bytes");
        Self {
            name: format!("leasehold_{}", hex(&bytes[..16])),
            lock: i64::from_be_bytes(*lock),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The channel and the payload of each notification for these messages, in order.
pub(crate) fn encode(sent: &[Message], at: ServerTime) -> (Vec<String>, Vec<String>) {
    let (mut channels, mut payloads) = (Vec::new(), Vec::new());
    let mut left: Vec<&Message> = sent.iter().collect();
    while let Some(session) = left.first().map(|message| message.to) {
        let (own, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|message| message.to == session);
        left = others;
        for part in own.chunks(MESSAGES) {
            let text = messages::encode(part.iter().copied(), at);
            channels.push(Channel::of(&session).name);
            payloads.push(format!("{} {text}", payloads.len()));
        }
    }
    (channels, payloads)
}

/// The notifications in a payload. `None` if this version cannot read it.
pub(crate) fn decode(payload: &str, clock: ClockId) -> Option<Vec<Notification>> {
    let (_, text) = payload.split_once(' ')?;
    messages::decode(text, clock)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::time::Duration;

    use leasehold_api::machine::Payload;
    use leasehold_api::{FencingToken, Stamp};

    use super::*;

    fn message(session: u8, payload: Payload) -> Message {
        Message {
            to: SessionId::from_bytes([session; 16]),
            payload,
        }
    }

    #[test]
    fn messages_survive() {
        let granted = Payload::Granted {
            sequence: (1 << 53) - 1,
            token: FencingToken::new((1 << 53) - 1),
            remaining: Duration::from_micros(u64::MAX),
        };
        let mut sent = vec![
            message(1, Payload::Revoked { sequence: 3 }),
            message(2, Payload::Revoked { sequence: 4 }),
        ];
        sent.extend((0..250).map(|_| message(1, granted)));
        let (channels, payloads) = encode(&sent, ServerTime::from_micros(7));
        assert_eq!(channels.len(), 4);
        assert!(payloads.iter().all(|payload| payload.len() < 8_000));
        let distinct: std::collections::BTreeSet<_> = payloads.iter().collect();
        assert_eq!(distinct.len(), 4, "no two payloads are equal");
        let stamp = Stamp {
            clock: ClockId::new(9),
            at: ServerTime::from_micros(7),
        };
        let first = Channel::of(&SessionId::from_bytes([1; 16])).name;
        let to = |wanted: bool| {
            let both = channels.iter().zip(&payloads);
            let some = both.filter(move |(channel, _)| (**channel == first) == wanted);
            some.flat_map(|(_, payload)| decode(payload, stamp.clock).expect("readable"))
                .collect::<Vec<_>>()
        };
        let others = vec![Notification::Revoked { sequence: 4, stamp }];
        let own = to.clone()(true);
        assert_eq!(to(false), others);
        assert_eq!(own.len(), 251);
        assert_eq!(own[0], Notification::Revoked { sequence: 3, stamp });
        assert!(matches!(own[250], Notification::Granted { remaining, .. }
            if remaining == Duration::from_micros(u64::MAX)));
    }

    #[test]
    fn other_payloads_are_unreadable() {
        for payload in ["", "x", "1", "1 x", "1 0 R", "1 0  R 1", "1 0 W 1"] {
            assert_eq!(decode(payload, ClockId::new(1)), None, "{payload:?}");
        }
        assert_eq!(decode("1 0", ClockId::new(1)), Some(Vec::new()));
    }

    #[test]
    fn channels_do_not_show_the_session() {
        let session = SessionId::from_bytes([0xAB; 16]);
        let channel = Channel::of(&session);
        assert!(!channel.name.contains("abab") && channel.name.len() < 64);
        assert_ne!(channel, Channel::of(&SessionId::from_bytes([0xAC; 16])));
    }

    proptest! {
        #[test]
        fn any_payload_is_read_or_unreadable(
            payload in prop_oneof![
                3 => "[0-9]{0,3} [0-9]{0,21}( [GWRZ] [0-9]{0,21}( [0-9]{0,21}){0,2}){0,3}",
                1 => any::<String>(),
            ],
        ) {
            if let Some(read) = decode(&payload, ClockId::new(1)) {
                let words = payload.split(' ').count();
                prop_assert!(read.len() * 2 + 2 <= words, "{payload:?}: {read:?}");
            }
        }
    }
}
