//! Separates the messages of the Postgres protocol.

use std::collections::HashMap;

use crate::resp::{Frame, Malformed, Request};

/// Finds the first message in `bytes`. Returns `None` while it is incomplete.
pub(crate) fn frame(bytes: &[u8]) -> Result<Option<Frame>, Malformed> {
    // Each message has a type, which is a letter, except for the first one of a client.
    let start = usize::from(bytes.first().is_some_and(|first| *first != 0));
    let Some(length) = bytes.get(start..start + 4) else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
    if length < 4 {
        return Err(Malformed(format!("a message of {length} bytes")));
    }
    let length = start + usize::try_from(length).expect("32 bits fit");
    Ok((bytes.len() >= length).then_some(Frame {
        length,
        is_push: false,
    }))
}

/// Whether this message of the server ends a reply.
pub(crate) fn ends_reply(message: &[u8]) -> bool {
    message[0] == b'Z'
}

/// What a client has said on a connection.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The texts of the prepared statements, by name.
    statements: HashMap<Vec<u8>, Vec<u8>>,
    /// The statement that was bound last.
    bound: Vec<u8>,
}

impl Said {
    /// Reads a message. Returns a request if it is one that the server answers with all that is asked so far.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<Option<Request>, Malformed> {
        let body = message.get(5..).unwrap_or_default();
        let mut texts = body.split(|byte| *byte == 0);
        let mut text = || {
            let text = texts.next().map(<[u8]>::to_vec);
            text.ok_or_else(|| Malformed(String::from_utf8_lossy(message).into_owned()))
        };
        match message[0] {
            // The log-in.
            0 => Ok(Some(Request::of(Vec::new()))),
            b'P' => {
                let name = text()?;
                self.statements.insert(name, text()?);
                Ok(None)
            }
            b'B' => {
                let (_portal, name) = (text()?, text()?);
                self.bound = self.statements.get(&name).cloned().unwrap_or_default();
                Ok(None)
            }
            b'Q' => Ok(Some(Request::of(text()?))),
            b'S' => Ok(Some(Request::of(std::mem::take(&mut self.bound)))),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    #[test]
    fn message_has_its_length_and_a_prefix_is_incomplete() {
        let typed = message(b'Q', b"SELECT 1\0");
        for whole in [&typed[1..], &typed[..]] {
            for cut in 0..whole.len() {
                assert_eq!(frame(&whole[..cut]), Ok(None), "cut at {cut}");
            }
            let more = [whole, b"Z"].concat();
            let found = frame(&more).expect("well formed").expect("whole");
            assert_eq!(found.length, whole.len());
        }
        assert!(frame(b"Q\0\0\0\x03").is_err());
    }

    #[test]
    fn request_is_the_text_of_the_statement() {
        let mut said = Said::default();
        let mut read = |kind, body| said.read(&message(kind, body)).expect("well formed");
        assert_eq!(read(b'P', b"s1\0UPDATE t\0\0\0"), None);
        assert_eq!(read(b'S', b""), Some(Request::of(Vec::new())));
        assert_eq!(read(b'B', b"\0s1\0\0\0"), None);
        assert_eq!(read(b'S', b""), Some(Request::of(b"UPDATE t".to_vec())));
        let simple = read(b'Q', b"SELECT 1\0").expect("a request");
        assert!(simple.mentions("SELECT") && !simple.mentions("UPDATE"));
    }
}
