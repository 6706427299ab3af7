//! Requests become script calls, and what comes back becomes replies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, End, EndReply,
    ForceRelease, ForceReply, InspectReply, Key, Notices, Poll, PollReply, Renew, RenewReply,
    Runtime, SessionId, Stamp, Stamped, TokioRuntime,
};
use leasehold_redis_protocol::{Call, Options, Protocol, Settings, reply};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::failure::ConnectError;
use crate::link::{Answer, Link, Shared};
use crate::notices;
use crate::source::Source;

/// Everything that a backend does: the methods of a [`LockBackend`] under the same names.
///
/// It is none itself, so that what a call costs is boxed once.
///
/// # Cancel safety
/// Dropping a future of one of its methods gives the call up; what was sent may be executed.
///
/// [`LockBackend`]: leasehold_api::LockBackend
pub struct Core<S: Source> {
    protocol: Protocol,
    shared: Arc<Shared<S>>,
    link: Arc<Link<S>>,
    /// For renewals: a connection of their own, driven where a blocked program cannot starve it.
    /// The same as `link` where no other can be opened.
    renewals: Arc<Link<S>>,
    /// Whether the connection for renewals has been made ready for the first of them.
    warmed: AtomicBool,
    closed: watch::Sender<bool>,
}

impl<S: Source> fmt::Debug for Core<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the URL, which may hold a password, nor the user's connection.
        f.debug_struct("Core")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl<S: Source> Core<S> {
    /// Connections from `source`; the first is opened by the first call.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(source: S, options: Options) -> Result<Self, ConnectError> {
        options.check()?;
        // Scripts publish in any case: other clients may listen although this one cannot.
        let protocol = Protocol::new(&options.key_prefix, Settings::default())?;
        let shared = Arc::new(Shared {
            source: Arc::new(source),
            options,
            runtime: TokioRuntime::current(),
            handle: Handle::current(),
            moved: Arc::default(),
        });
        let link = Link::new(Arc::clone(&shared));
        let renewals = match TokioRuntime::guardian() {
            Some(guardian) if shared.source.is_own() => {
                Link::new(Arc::new(shared.driven_by(guardian)))
            }
            _ => Arc::clone(&link),
        };
        Ok(Self {
            protocol,
            shared,
            link,
            renewals,
            warmed: AtomicBool::new(false),
            closed: watch::Sender::new(false),
        })
    }

    /// What was asked for.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Connects, if that was not done yet.
    ///
    /// # Errors
    /// As any call: why there is no connection.
    ///
    /// # Cancel safety
    /// Connecting goes on without the future, for whoever calls next.
    pub async fn warm_up(&self) -> Result<(), BackendError> {
        self.link.warm_up().await
    }

    async fn run(&self, call: &Call) -> Result<Answer<S>, BackendError> {
        self.link.script(call).await
    }

    /// Connects where renewals go, and has the server load their script: the first renewal of a
    /// short lease has little time, and is to need one round trip only.
    fn warm_renewals(&self) {
        if Arc::ptr_eq(&self.link, &self.renewals) || self.warmed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (link, nothing) = (Arc::clone(&self.renewals), self.protocol.renew(&[]));
        let handle = self.renewals.handle().clone();
        // What fails here is done by the first renewal.
        handle.spawn(async move { link.script(&nothing).await.map(drop) });
    }

    /// A batch in one call; an error of the call is the error of each of its elements.
    async fn run_all<T>(
        link: &Arc<Link<S>>,
        count: usize,
        call: impl FnOnce() -> Call,
        decode: impl FnOnce(&Answer<S>) -> Vec<Result<Stamped<T>, BackendError>>,
    ) -> Vec<Result<Stamped<T>, BackendError>> {
        if count == 0 {
            return Vec::new();
        }
        match link.script(&call()).await {
            Ok(answer) => decode(&answer),
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    /// As `LockBackend::capabilities`.
    pub fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = self.shared.source.is_own();
        capabilities.independent_renewal = !Arc::ptr_eq(&self.link, &self.renewals);
        capabilities
    }

    /// As `LockBackend::runtime`.
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.shared.runtime.clone())
    }

    /// As `LockBackend::hello`, cancel safety included.
    pub async fn hello(&self) -> Result<Stamp, BackendError> {
        self.link.time().await
    }

    /// As `LockBackend::listen`, cancel safety included.
    pub async fn listen(&self, session: SessionId) -> Result<Notices, BackendError> {
        if *self.closed.borrow() {
            return Err(BackendError::Closed);
        }
        if !self.shared.source.is_own() {
            return Err(BackendError::Unsupported { what: "listen" });
        }
        let channel = self.protocol.channel(&session);
        notices::listen(&self.shared, channel, self.closed.subscribe()).await
    }

    /// As `LockBackend::acquire`, cancel safety included.
    pub async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        let answer = self.run(&self.protocol.acquire(request)).await?;
        let answer = reply::acquire(answer.body(), answer.clock)?;
        if may_be_renewed(&answer.reply) {
            self.warm_renewals();
        }
        Ok(answer)
    }

    /// As `LockBackend::acquire_all`, cancel safety included.
    pub async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let count = batch.len();
        let answers = Self::run_all(
            &self.link,
            count,
            || self.protocol.acquires(batch),
            |answer| reply::acquires(answer.body(), count, answer.clock),
        )
        .await;
        let mut replies = answers.iter().flatten().map(|answer| &answer.reply);
        if replies.any(may_be_renewed) {
            self.warm_renewals();
        }
        answers
    }

    /// As `LockBackend::poll`, cancel safety included.
    pub async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let count = batch.len();
        Self::run_all(
            &self.link,
            count,
            || self.protocol.poll(batch),
            |answer| reply::polls(answer.body(), count, answer.clock),
        )
        .await
    }

    /// As `LockBackend::renew`, cancel safety included.
    ///
    /// Where no second connection can be had, because the server or a proxy allows no more, the one
    /// for commands must do.
    pub async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let began = self.shared.runtime.now();
        let replies = self.renew_over(&self.renewals, batch).await;
        if Arc::ptr_eq(&self.link, &self.renewals) || !replies.iter().all(not_executed) {
            return replies;
        }
        let took = self.shared.runtime.now().saturating_since(began);
        let rest = self.shared.options.call_timeout.saturating_sub(took);
        let again = self.renew_over(&self.link, batch);
        let unknown = || Err(BackendError::outcome_unknown("no answer in time"));
        let answered = self.shared.within(rest, again).await;
        answered.unwrap_or_else(|| batch.iter().map(|_| unknown()).collect())
    }

    async fn renew_over(
        &self,
        link: &Arc<Link<S>>,
        batch: &[Renew],
    ) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let count = batch.len();
        Self::run_all(
            link,
            count,
            || self.protocol.renew(batch),
            |answer| reply::renewals(answer.body(), count, answer.clock),
        )
        .await
    }

    /// As `LockBackend::end`, cancel safety included.
    pub async fn end(&self, batch: &[End]) -> Vec<Result<Stamped<EndReply>, BackendError>> {
        let count = batch.len();
        Self::run_all(
            &self.link,
            count,
            || self.protocol.end(batch),
            |answer| reply::ends(answer.body(), count, answer.clock),
        )
        .await
    }

    /// As `LockBackend::convert`, cancel safety included.
    pub async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let answer = self.run(&self.protocol.convert(request)).await?;
        reply::convert(answer.body(), answer.clock)
    }

    /// As `LockBackend::inspect`, cancel safety included.
    pub async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let answer = self.run(&self.protocol.inspect(key)).await?;
        reply::inspect(answer.body(), answer.clock)
    }

    /// As `LockBackend::force_release`, cancel safety included.
    pub async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let answer = self.run(&self.protocol.force_release(request)).await?;
        reply::force_release(answer.body(), answer.clock)
    }

    /// As `LockBackend::close`, cancel safety included.
    pub async fn close(&self) -> Result<(), BackendError> {
        self.closed.send_replace(true);
        self.link.close();
        self.renewals.close();
        Ok(())
    }
}

fn not_executed<T>(reply: &Result<T, BackendError>) -> bool {
    matches!(reply, Err(BackendError::Unavailable { .. }))
}

/// Whether a renewal may follow.
const fn may_be_renewed(reply: &AcquireReply) -> bool {
    matches!(reply, AcquireReply::Acquired(_) | AcquireReply::Queued(_))
}
