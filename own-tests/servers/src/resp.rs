//! A parser for the Redis protocol that separates messages.

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    arguments: Vec<Vec<u8>>,
}

impl Request {
    /// The command and its arguments.
    pub fn arguments(&self) -> &[Vec<u8>] {
        &self.arguments
    }

    /// Whether this is the command `name`, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.first().eq_ignore_ascii_case(name.as_bytes())
    }

    /// Whether this runs a script.
    pub fn is_script(&self) -> bool {
        self.is("EVALSHA") || self.is("EVAL")
    }

    /// A request that consists of one text, such as a statement.
    pub(crate) fn of(text: Vec<u8>) -> Self {
        Self {
            arguments: vec![text],
        }
    }

    /// Whether the command, or the statement, contains this text.
    pub fn mentions(&self, text: &str) -> bool {
        String::from_utf8_lossy(self.first()).contains(text)
    }

    /// Whether the server replies with messages that look like pushes, one per channel.
    pub(crate) fn is_subscription(&self) -> bool {
        self.first().to_ascii_lowercase().ends_with(b"subscribe")
    }

    fn first(&self) -> &[u8] {
        self.arguments.first().map_or(&[], Vec::as_slice)
    }
}

/// A command as the protocol writes it.
pub(crate) fn text_of(command: &[&str]) -> String {
    let words = command
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", command.len(), words.collect::<String>())
}

/// One complete message at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The length in bytes.
    pub(crate) length: usize,
    /// Whether it is a RESP3 push, or its equivalent in RESP2.
    pub(crate) is_push: bool,
}

/// The input that is not valid Redis protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

/// Finds the first message in `bytes`. Returns `None` while it is incomplete.
pub(crate) fn frame(bytes: &[u8]) -> Result<Option<Frame>, Malformed> {
    let mut at = 0;
    let mut missing = 1_usize;
    while missing > 0 {
        let Some((line, next)) = line(bytes, at) else {
            return Ok(None);
        };
        at = next;
        missing -= 1;
        match line[0] {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            b'$' | b'=' | b'!' => {
                if let Some(length) = count(line)? {
                    at += length + 2;
                }
            }
            b'*' | b'~' | b'>' => missing += count(line)?.unwrap_or(0),
            b'%' => missing += 2 * count(line)?.unwrap_or(0),
            // An inline command is a complete message.
            _ if line.len() + 2 == at && is_inline(bytes) => {}
            _ => return Err(Malformed(String::from_utf8_lossy(line).into_owned())),
        }
    }
    if at > bytes.len() {
        return Ok(None);
    }
    Ok(Some(Frame {
        length: at,
        is_push: bytes[0] == b'>' || is_resp2_push(&bytes[..at]),
    }))
}

/// Parses the request in `frame`.
pub(crate) fn request(frame: &[u8]) -> Result<Request, Malformed> {
    let bad = || Malformed(String::from_utf8_lossy(frame).into_owned());
    let (head, mut at) = line(frame, 0).ok_or_else(bad)?;
    if is_inline(frame) {
        let words = head.split(u8::is_ascii_whitespace);
        return Ok(Request {
            arguments: words.map(<[u8]>::to_vec).collect(),
        });
    }
    if head[0] != b'*' {
        return Err(bad());
    }
    let mut arguments = Vec::new();
    for _ in 0..count(head)?.unwrap_or(0) {
        let (head, start) = line(frame, at).ok_or_else(bad)?;
        let length = count(head)?.ok_or_else(bad)?;
        let argument = frame.get(start..start + length).ok_or_else(bad)?;
        arguments.push(argument.to_vec());
        at = start + length + 2;
    }
    Ok(Request { arguments })
}

/// Whether this is an inline command, such as the HELLO that fred sends.
fn is_inline(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
}

/// Returns the line that starts at `at`, without its line ending, and the start of the next line.
/// The returned line is never empty.
fn line(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    // An empty line is malformed. Returning its line ending as content makes the caller refuse it.
    let content = if end == 0 { &rest[..2] } else { &rest[..end] };
    Some((content, at + end + 2))
}

/// Parses the number after the type byte. Returns `None` for -1, which means null.
fn count(line: &[u8]) -> Result<Option<usize>, Malformed> {
    let text = String::from_utf8_lossy(&line[1..]);
    if text == "-1" {
        return Ok(None);
    }
    let bad = |_| Malformed(String::from_utf8_lossy(line).into_owned());
    text.parse().map(Some).map_err(bad)
}

/// Whether this is a RESP2 message of a subscription: an array that starts with one of these words.
fn is_resp2_push(frame: &[u8]) -> bool {
    let array = line(frame, 0).filter(|(head, _)| head[0] == b'*');
    let text = array.and_then(|(_, at)| line(frame, at));
    let text = text.filter(|(head, _)| head[0] == b'$');
    let Some((word, _)) = text.and_then(|(_, at)| line(frame, at)) else {
        return false;
    };
    matches!(
        word,
        b"message"
            | b"pmessage"
            | b"smessage"
            | b"subscribe"
            | b"psubscribe"
            | b"ssubscribe"
            | b"unsubscribe"
            | b"punsubscribe"
            | b"sunsubscribe"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> Option<Frame> {
        frame(bytes).expect("well formed")
    }

    #[test]
    fn every_type_has_its_length_and_a_prefix_is_incomplete() {
        for message in [
            &b"+OK\r\n"[..],
            b"-ERR no\r\n",
            b":12\r\n",
            b"_\r\n",
            b",1.5\r\n",
            b"#t\r\n",
            b"(123\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\n\r\n\r\n\r\n",
            b"=5\r\ntxt:a\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n$-1\r\n",
            b"~1\r\n:1\r\n",
        ] {
            let mut bytes = message.to_vec();
            for cut in 0..bytes.len() {
                assert_eq!(whole(&bytes[..cut]), None, "{message:?} cut at {cut}");
            }
            bytes.extend_from_slice(b":7\r\n");
            let expected = Frame {
                length: message.len(),
                is_push: false,
            };
            assert_eq!(whole(&bytes), Some(expected), "{message:?}");
        }
    }

    #[test]
    fn pushes_of_both_protocols_are_recognized() {
        for push in [
            &b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"[..],
            b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
            b"*3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
            b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
            b"*3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n",
            b"*3\r\n$12\r\npunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        ] {
            assert!(whole(push).expect("whole").is_push, "{push:?}");
        }
        let reply = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n";
        assert!(!whole(reply).expect("whole").is_push);
    }

    #[test]
    fn request_keeps_all_bytes_of_its_arguments() {
        let bytes = b"*3\r\n$7\r\nevalsha\r\n$2\r\n\r\n\r\n$0\r\n\r\n";
        let request = request(bytes).expect("well formed");
        assert!(request.is_script() && request.is("EVALSHA") && !request.is("EVAL"));
        assert_eq!(request.arguments()[1..], [b"\r\n".to_vec(), Vec::new()]);
    }

    #[test]
    fn inline_command_is_a_request() {
        let bytes = b"HELLO 3 AUTH me pw\r\n*1\r\n";
        let first = whole(bytes).expect("whole");
        assert_eq!((first.length, first.is_push), (20, false));
        let request = request(&bytes[..first.length]).expect("well formed");
        assert!(request.is("hello"));
        assert_eq!(request.arguments()[4], b"pw");
    }

    #[test]
    fn malformed_input_is_refused() {
        for bytes in [
            &b"?\r\n"[..],
            b"*1\r\nPING\r\n",
            b"\r\n",
            b"*x\r\n",
            b"$-2\r\n",
        ] {
            assert!(frame(bytes).is_err(), "{bytes:?}");
        }
        assert!(request(b"+PING\r\n").is_err());
        assert!(request(b"*1\r\n$-1\r\n").is_err());
    }
}
