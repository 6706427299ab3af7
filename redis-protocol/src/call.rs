//! From requests to script calls.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{
    Acquire, Convert, End, ForceHow, ForceRelease, InvalidInput, Key, Operation, Poll, Renew,
    SessionId, bounds,
};

use crate::names::Names;
use crate::script::{Script, Scripts};
use crate::wire::{Writer, mode_code};

/// What is written into the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Deliver-before horizon, H; the same for all clients of a server.
    pub horizon: Duration,
    /// T: how long the last token of a key is remembered; the same for all clients of a server.
    pub token_retention: Duration,
    /// Whether scripts publish notices. Without it every waiter depends on its polls, and no
    /// place may say that it listens.
    pub push: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon: bounds::HORIZON,
            token_retention: bounds::TOKEN_RETENTION,
            push: true,
        }
    }
}

impl Settings {
    /// The same, with or without publishing.
    #[must_use]
    pub const fn with_push(mut self, push: bool) -> Self {
        self.push = push;
        self
    }

    /// The same with another horizon, cut to whole microseconds.
    #[must_use]
    pub const fn with_horizon(mut self, horizon: Duration) -> Self {
        self.horizon = horizon;
        self
    }

    /// The same with another time for which tokens are remembered, cut to whole microseconds.
    #[must_use]
    pub const fn with_token_retention(mut self, retention: Duration) -> Self {
        self.token_retention = retention;
        self
    }
}

/// One call of a script: `EVALSHA sha1 numkeys keys... args...`.
#[derive(Clone, Debug)]
pub struct Call {
    /// The script.
    pub script: Arc<Script>,
    /// The Redis keys, one for each element.
    pub keys: Vec<Vec<u8>>,
    /// One packed argument for each element.
    pub args: Vec<Vec<u8>>,
}

/// Turns requests into script calls.
///
/// A batch becomes one call with several keys, which a standalone server takes. In a cluster,
/// where all keys of a call must share a slot, make a call for each element (pass a slice of
/// one) and send them pipelined.
#[derive(Debug)]
pub struct Protocol {
    names: Names,
    scripts: Scripts,
}

impl Protocol {
    /// A protocol whose names start with `prefix`.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] if the prefix contains braces, which would move the cluster
    /// hash tag.
    pub fn new(prefix: &str, settings: Settings) -> Result<Self, InvalidInput> {
        Ok(Self {
            names: Names::new(prefix)?,
            scripts: Scripts::new(&settings),
        })
    }

    /// The Redis key of a lock: `PREFIX{ENCODED}`, where braces, `%` and control characters of
    /// the name are percent-encoded.
    pub fn key(&self, key: &Key) -> Vec<u8> {
        self.names.key(key)
    }

    /// The channel on which a session is told of its grants.
    pub fn channel(&self, session: &SessionId) -> String {
        self.names.channel(session)
    }

    /// Answered by [`reply::acquire`](crate::reply::acquire).
    pub fn acquire(&self, request: &Acquire) -> Call {
        self.acquires(std::slice::from_ref(request))
    }

    /// Answered by [`reply::acquires`](crate::reply::acquires).
    pub fn acquires(&self, batch: &[Acquire]) -> Call {
        self.many(&self.scripts.acquire, batch, |request, out| {
            acquire(out, request);
            &request.key
        })
    }

    /// Answered by [`reply::polls`](crate::reply::polls).
    pub fn poll(&self, batch: &[Poll]) -> Call {
        self.many(&self.scripts.poll, batch, |poll, out| {
            operation(out, &poll.operation).u8(u8::from(poll.listening));
            &poll.key
        })
    }

    /// Answered by [`reply::renewals`](crate::reply::renewals).
    pub fn renew(&self, batch: &[Renew]) -> Call {
        self.many(&self.scripts.renew, batch, |renew, out| {
            operation(out, &renew.operation).duration(renew.lease);
            &renew.key
        })
    }

    /// Answered by [`reply::ends`](crate::reply::ends).
    pub fn end(&self, batch: &[End]) -> Call {
        self.many(&self.scripts.end, batch, |end, out| {
            operation(out, &end.operation);
            &end.key
        })
    }

    /// Answered by [`reply::convert`](crate::reply::convert).
    pub fn convert(&self, request: &Convert) -> Call {
        let mut out = Writer::default();
        operation(&mut out, &request.operation)
            .number(request.expected.get())
            .u8(mode_code(request.to).0);
        self.one(&self.scripts.convert, &request.key, out)
    }

    /// Answered by [`reply::inspect`](crate::reply::inspect). The script writes nothing.
    pub fn inspect(&self, key: &Key) -> Call {
        self.one(&self.scripts.inspect, key, Writer::default())
    }

    /// Answered by [`reply::force_release`](crate::reply::force_release).
    pub fn force_release(&self, request: &ForceRelease) -> Call {
        let mut out = Writer::default();
        out.u8(match request.how {
            ForceHow::Revoke => b'R',
            ForceHow::Now => b'N',
        });
        for token in &request.tokens {
            out.number(token.get());
        }
        self.one(&self.scripts.force_release, &request.key, out)
    }

    fn one(&self, script: &Arc<Script>, key: &Key, argument: Writer) -> Call {
        Call {
            script: Arc::clone(script),
            keys: vec![self.names.key(key)],
            args: vec![argument.finish()],
        }
    }

    fn many<'a, T>(
        &self,
        script: &Arc<Script>,
        batch: &'a [T],
        pack: impl Fn(&'a T, &mut Writer) -> &'a Key,
    ) -> Call {
        let (keys, args) = batch
            .iter()
            .map(|request| {
                let mut out = Writer::default();
                let key = pack(request, &mut out);
                (self.names.key(key), out.finish())
            })
            .unzip();
        Call {
            script: Arc::clone(script),
            keys,
            args,
        }
    }
}

fn operation<'a>(out: &'a mut Writer, operation: &Operation) -> &'a mut Writer {
    out.raw(operation.session.as_bytes())
        .number(operation.sequence)
        .raw(&operation.owner.as_u64().to_le_bytes())
}

fn acquire(out: &mut Writer, request: &Acquire) {
    let (mode, permits) = mode_code(request.mode);
    let (wait, until) = match &request.wait {
        None => (0, None),
        Some(wait) => (if wait.listening { 2 } else { 1 }, wait.place_until),
    };
    operation(out, &request.operation)
        .spec(&request.spec)
        .u8(mode)
        .u32(permits)
        .duration(request.lease)
        .u8(wait)
        // The largest number for "never": scripts take the minimum with it.
        .number(until.map_or(u64::MAX, |until| until.as_micros()))
        .number(request.deliver_before.as_micros())
        .number(request.floor.map_or(0, |floor| floor.get()))
        .u32(request.limits.holds)
        .u32(request.limits.waiters)
        .u32(request.limits.holders)
        .label(&request.label);
}
