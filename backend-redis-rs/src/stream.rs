//! A stream that keeps the reason with which a server refuses a client.
//!
//! A server in protected mode, or one that has no room for another client, sends an error before it is asked
//! anything, and closes the connection. The library takes the error for the answer to its first command, and
//! reports only that the others have none.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use leasehold_redis_common::connection::{Failure, FailureKind};
use redis::{RedisError, ServerError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::failure;

/// Where a first line ends that is longer than any reason.
const LONGEST: usize = 4_096;
const ERROR: u8 = b'-';

/// Any stream of bytes.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Bytes for S {}

/// Forwards what the server says, and keeps its first line if that is an error.
pub(crate) struct Stream {
    bytes: Box<dyn Bytes>,
    first: FirstLine,
    /// Whether the first line is complete, or is no error.
    has_first: bool,
}

/// The first line that a server says, as far as it has come, if it is an error.
#[derive(Clone, Default)]
pub(crate) struct FirstLine(Arc<Mutex<Vec<u8>>>);

impl FirstLine {
    /// The reason for the end of a connection: what the server has said first, or else the library's error.
    pub(crate) fn reason(&self, error: RedisError) -> Failure {
        let ended = failure(error);
        if ended.kind() != FailureKind::Lost {
            return ended;
        }
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match redis::parse_redis_value(&line) {
            Ok(Value::ServerError(said)) => failure(ServerError::into(said)),
            _ => ended,
        }
    }

    /// Takes what has come. Returns whether the line is complete, or is no error.
    fn take(&self, bytes: &[u8]) -> bool {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        line.extend_from_slice(bytes);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end + 1);
            return true;
        }
        line.first().is_some_and(|first| *first != ERROR) || line.len() > LONGEST
    }
}

impl Stream {
    pub(crate) fn new(bytes: impl Bytes + 'static) -> (Self, FirstLine) {
        let first = FirstLine::default();
        let stream = Self {
            bytes: Box::new(bytes),
            first: first.clone(),
            has_first: false,
        };
        (stream, first)
    }

    /// The server may have closed the connection after its first line. Then the line is read next, and after it the
    /// end.
    fn unless_refused<T>(&self, written: io::Result<T>, all: T) -> io::Result<T> {
        match written {
            Err(_) if !self.has_first => Ok(all),
            written => written,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.bytes).poll_read(cx, buf));
        if !self.has_first {
            let new = &buf.filled()[before..];
            self.has_first = new.is_empty() || self.first.take(new);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.bytes).poll_write(cx, buf));
        Poll::Ready(self.unless_refused(written, buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.bytes).poll_flush(cx));
        Poll::Ready(self.unless_refused(flushed, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// The server sends these parts and closes the connection. Returns what is reported.
    async fn reported(parts: &[&str]) -> String {
        let (mut stream, first, mut server) = pair();
        for part in parts {
            server.write_all(part.as_bytes()).await.expect("open");
            let mut read = vec![0; part.len()];
            stream.read_exact(&mut read).await.expect("forwarded");
            assert_eq!(read, part.as_bytes());
        }
        drop(server);
        let error = std::io::Error::from(ErrorKind::BrokenPipe);
        first.reason(error.into()).to_string()
    }

    fn pair() -> (Stream, FirstLine, DuplexStream) {
        let (ours, server) = duplex(64);
        let (stream, first) = Stream::new(ours);
        (stream, first, server)
    }

    #[tokio::test]
    async fn first_line_is_the_reason_if_it_is_an_error() {
        let lost = std::io::Error::from(ErrorKind::BrokenPipe).to_string();
        for (parts, reason) in [
            (&["-DENIED no\r\n"][..], "DENIED no"),
            (&["-", "DENIED n", "o\r", "\nmore"][..], "DENIED no"),
            (&[][..], &lost),
            (&["+OK\r\n-ERR later\r\n"][..], &lost),
            (&["-ERR cut o"][..], &lost),
        ] {
            let reported = reported(parts).await;
            assert!(reported.contains(reason), "{parts:?}: {reported}");
        }
    }

    #[tokio::test]
    async fn failed_write_waits_for_the_reason() {
        let (mut stream, _, server) = pair();
        drop(server);
        stream.write_all(b"HELLO").await.expect("not yet");
        assert_eq!(stream.read(&mut [0; 8]).await.expect("the end"), 0);
        stream.write_all(b"HELLO").await.expect_err("it has ended");
    }

    #[test]
    fn endless_line_is_not_kept() {
        let first = FirstLine::default();
        assert!(!first.take(&[ERROR; LONGEST]));
        assert!(first.take(&[ERROR]));
    }
}
