//! Messages as text, for a store with [`push`](crate::Store::can_listen).
//!
//! A text is a list of words: the time of the step in µs, and then `G sequence token remaining`,
//! `W sequence` or `R sequence` for each message. `remaining` is in µs.
//!
//! # Examples
//! ```
//! use leasehold_api::machine::{Message, Payload};
//! use leasehold_api::{ClockId, Notification, ServerTime, SessionId, Stamp};
//! use leasehold_store::messages;
//!
//! let (to, payload) = (SessionId::from_bytes([7; 16]), Payload::Revoked { sequence: 3 });
//! let stamp = Stamp { clock: ClockId::new(1), at: ServerTime::from_micros(5) };
//! let text = messages::encode(&[Message { to, payload }], stamp.at);
//! let received = messages::decode(&text, stamp.clock);
//! assert_eq!(received, Some(vec![Notification::Revoked { sequence: 3, stamp }]));
//! ```

use std::fmt::Write as _;
use std::str::Split;
use std::time::Duration;

use leasehold_api::machine::{Message, Payload};
use leasehold_api::{ClockId, FencingToken, Notification, ServerTime, Stamp};

/// Writes messages as a text of letters, digits and spaces, in order.
///
/// `at` is the time of the [stamp](crate::Write::stamp) of their write. The text has at most 20 bytes, and 64 more
/// for each message. It contains no secret: it doesn't say to whom the messages go.
pub fn encode<'a>(messages: impl IntoIterator<Item = &'a Message>, at: ServerTime) -> String {
    let mut text = at.as_micros().to_string();
    for message in messages {
        let written = match message.payload {
            Payload::Granted {
                sequence,
                token,
                remaining,
            } => write!(text, " G {sequence} {token} {}", remaining.as_micros()),
            Payload::Revoked { sequence } => write!(text, " R {sequence}"),
        };
        written.expect("a string grows");
    }
    text
}

/// Reads the notifications in a text. `clock` is the id of the store's clock.
///
/// Returns `None` if [`encode`] of this version didn't write the text. It may have been a grant, so let the stream
/// yield [`Notification::Missed`] then.
pub fn decode(text: &str, clock: ClockId) -> Option<Vec<Notification>> {
    let mut words = text.split(' ');
    let number = |words: &mut Split<'_, char>| words.next()?.parse::<u64>().ok();
    let at = ServerTime::from_micros(number(&mut words)?);
    let stamp = Stamp { clock, at };
    let mut notifications = Vec::new();
    while let Some(kind) = words.next() {
        let sequence = number(&mut words)?;
        let payload = match kind {
            "G" => Payload::Granted {
                sequence,
                token: FencingToken::new(number(&mut words)?),
                remaining: Duration::from_micros(number(&mut words)?),
            },
            "R" => Payload::Revoked { sequence },
            _ => return None,
        };
        notifications.push(payload.stamped(stamp));
    }
    Some(notifications)
}

#[cfg(test)]
mod tests {
    use leasehold_api::SessionId;

    use super::*;

    #[test]
    fn messages_survive() {
        let token = FencingToken::new((1 << 53) - 1);
        let remaining = Duration::from_micros(u64::MAX);
        let sequence = (1 << 53) - 1;
        let payloads = [
            Payload::Revoked { sequence: 3 },
            Payload::Granted {
                sequence,
                token,
                remaining,
            },
            Payload::Revoked { sequence: 4 },
        ];
        let to = SessionId::from_bytes([1; 16]);
        let sent = payloads.map(|payload| Message { to, payload });
        let (clock, at) = (ClockId::new(9), ServerTime::from_micros(u64::MAX));
        let stamp = Stamp { clock, at };
        let text = encode(&sent, at);
        assert!(text.len() <= 20 + 3 * 64, "{text}");
        let received = vec![
            Notification::Revoked { sequence: 3, stamp },
            Notification::Granted {
                sequence,
                token,
                remaining,
                stamp,
            },
            Notification::Revoked { sequence: 4, stamp },
        ];
        assert_eq!(decode(&text, clock), Some(received));
    }

    #[test]
    fn other_texts_are_unreadable() {
        for text in ["", "x", "0 Z 1", "0 G 1 2", "0 W", "0  W 1"] {
            assert_eq!(decode(text, ClockId::new(1)), None, "{text:?}");
        }
        assert_eq!(decode("0", ClockId::new(1)), Some(Vec::new()));
    }
}
