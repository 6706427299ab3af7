//! Bad input is refused before any I/O.

use std::slice::from_ref;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, Error, InvalidInput, LockBackend,
    LockClient, LockSpec, Mode, Renew, RenewReply, Stamp, Stamped, forward_lock_backend,
};
use leasehold_quorum::Quorum;
use leasehold_sim::{Latency, SimBackend, SimServer};

use crate::support::{Servers, ms, secs};

#[tokio::test(start_paused = true)]
async fn number_of_servers_is_odd() {
    let server = SimServer::new(51);
    for count in 0..12 {
        let quorum = Quorum::new((0..count).map(|_| server.client("a")));
        let valid = [3, 5, 7, 9].contains(&count);
        assert_eq!(quorum.is_ok(), valid, "{count}");
        let Err(error) = quorum else { continue };
        let message = format!("servers: a quorum has 3, 5, 7 or 9 servers, not {count}");
        assert_eq!(error.to_string(), message);
    }
}

#[tokio::test(start_paused = true)]
async fn settings_have_limits() {
    let server = SimServer::new(52);
    let new = || Quorum::new([0, 1, 2].map(|_| server.client("a"))).expect("three servers");
    let is_refused = |result: Result<Quorum, InvalidInput>, name: &str| {
        result.is_err_and(|it| it.to_string().starts_with(name))
    };
    assert!(is_refused(new().call_timeout(ms(9)), "call_timeout"));
    assert!(is_refused(new().call_timeout(secs(6)), "call_timeout"));
    assert!(is_refused(new().max_lease(ms(99)), "max_lease"));
    assert!(is_refused(new().max_lease(secs(3_601)), "max_lease"));
    assert!(new().max_lease(secs(3_600)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn longer_leases_are_rejected() {
    let servers = Servers::start(53);
    let a = servers.process("a");
    let mut request = a.request("k", 1);
    request.lease = secs(31);
    let renew = Renew::new(request.key.clone(), request.operation, secs(31)).expect("valid");
    let expected =
        "rejected by the server: a lease of 31s is longer than the max_lease of the quorum, 30s";
    let acquired = a.quorum.acquire(from_ref(&request)).await.remove(0);
    assert_eq!(acquired.expect_err("rejected").to_string(), expected);
    let renewed = a.quorum.renew(&[renew]).await.remove(0);
    assert_eq!(renewed.expect_err("rejected").to_string(), expected);
    servers.assert_untouched();
}

/// Also with a `max_lease` below the default lease of a client.
#[tokio::test(start_paused = true)]
async fn several_keys_are_locked_with_a_short_max_lease() {
    let servers = Servers::start(57);
    let short = |quorum: Quorum| quorum.max_lease(secs(5)).expect("valid");
    let locks = servers.process_with_quorum("a", short).locks;
    drop(locks.lock_all(["a", "b"]).await.expect("free"));
    let many = locks.mutexes(["a", "b"]).expect("valid");
    drop(many.lease(secs(4)).lock().await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn rejected_renewal_touches_no_other() {
    let servers = Servers::start(56);
    let a = servers.process("a");
    a.ask("k", 1).await.expect("granted");
    let request = a.request("k", 1);
    let renew = |lease| Renew::new(request.key.clone(), request.operation, lease).expect("valid");
    let replies = a.quorum.renew(&[renew(secs(31)), renew(secs(30))]).await;
    let [Err(BackendError::Rejected { .. }), Ok(renewed)] = &*replies else {
        panic!("{replies:?}");
    };
    assert!(matches!(renewed.reply, RenewReply::Renewed { .. }));
}

/// A semaphore doesn't carry over: with two permits on each of three servers, {A, B}, {B, C} and
/// {C, A} are three quorums.
#[tokio::test(start_paused = true)]
async fn other_kinds_are_unsupported() {
    let servers = Servers::start(54);
    let a = servers.process("a");
    let catalog = a.locks.rw_lock("catalog");
    assert!(matches!(catalog, Err(Error::Unsupported { .. })));
    let permits = a.locks.semaphore("permits", 2);
    assert!(matches!(permits, Err(Error::Unsupported { .. })));
    let mut request = a.request("k", 1);
    request.spec = LockSpec::semaphore(2).expect("valid");
    request.mode = Mode::Permits(1);
    let answer = a.quorum.acquire(from_ref(&request)).await.remove(0);
    let is_unsupported = matches!(answer, Err(BackendError::Unsupported { .. }));
    assert!(is_unsupported, "{answer:?}");
    servers.assert_untouched();
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_those_of_all_servers() {
    let servers = Servers::start(55);
    let mut expected = Capabilities::minimal();
    expected.max_lease = secs(30);
    expected.clock_error = secs(1);
    let a = servers.process("a");
    let links = a.links.clone();
    let [one, two, three] = links.map(|it| Arc::new(it) as Arc<dyn LockBackend>);
    let mixed = Quorum::new([one, two, Arc::new(Minimal(three))]).expect("three servers");
    assert_eq!(mixed.capabilities(), expected);
    expected.independent_renewal = true;
    expected.batches = true;
    expected.clock_error = secs(0);
    assert_eq!(a.quorum.capabilities(), expected);
}

/// A backend that declares nothing but mutexes, and a clock that errs.
#[derive(Debug)]
struct Minimal(Arc<dyn LockBackend>);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for Minimal {
    forward_lock_backend! {
        |wrapper| wrapper.0;
        runtime hello clock read_clock listen acquire poll renew release convert inspect
        force_release list write_note close
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal();
        capabilities.clock_error = secs(1);
        capabilities
    }
}

/// Connections to the first server, and two to the second one.
fn second_one_twice(servers: &Servers) -> [Named; 3] {
    let clock = |server: u64| ClockId::new((server + 1) << 16);
    [0, 1, 1].map(|server| Named(servers.all[server as usize].client("a"), clock(server)))
}

/// Two of the names lead to the same server. Its vote would count twice. One of its backends may have seen
/// more steps of its clock.
#[tokio::test(start_paused = true)]
async fn same_server_twice_is_refused() {
    for steps in [0, 1] {
        let servers = Servers::start(56);
        let mut links = second_one_twice(&servers);
        links[2].1 = links[2].1.after_steps(steps);
        let quorum = Quorum::new(links);
        let quorum = Arc::new(quorum.expect("three backends"));
        let client = LockClient::new(Arc::clone(&quorum));
        let outcome = client.mutex("k").expect("a valid key").try_lock().await;
        let error = outcome.expect_err("refused");
        assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
        let problem = "servers 2 and 3 of the quorum are the same one";
        assert!(format!("{error:?}").contains(problem), "{error:?}");
        let greeting = quorum.hello().await.expect_err("refused");
        let message = format!("rejected by the server: {problem}");
        assert_eq!(greeting.to_string(), message);
        servers.advance(secs(1)).await;
        servers.assert_idle();
    }
}

/// The quorum knows that two of its servers are the same one only when both have answered. Until then, that server must
/// not renew a lock alone.
#[tokio::test(start_paused = true)]
async fn same_server_twice_renews_no_lock_alone() {
    let servers = Servers::start(57);
    let links = second_one_twice(&servers);
    let [near, _, far] = links.each_ref().map(|link| link.0.clone());
    far.set_latency(Latency::fixed(ms(20)));
    let quorum = Arc::new(Quorum::new(links).expect("three backends"));
    let client = LockClient::new(Arc::clone(&quorum));
    let outcome = client.mutex("k").expect("a valid key").try_lock().await;
    let guard = outcome.expect("granted by two servers").into_guard();
    let guard = guard.expect("a lock");
    near.isolate();
    let b = servers.process("b");
    servers.advance(secs(32)).await;
    let second = b.gets("k").await;
    assert!(second && !guard.is_valid(), "two hold the lock");
}

/// A greeting waits for all servers, so it finds out.
#[tokio::test(start_paused = true)]
async fn greeting_waits_for_all_servers() {
    let servers = Servers::start(58);
    let links = second_one_twice(&servers);
    links[2].0.set_latency(Latency::fixed(ms(20)));
    let quorum = Quorum::new(links).expect("three backends");
    let error = quorum.hello().await.expect_err("refused");
    assert!(matches!(error, BackendError::Rejected { .. }), "{error}");
    // A server that doesn't answer costs half of the call timeout.
    let a = servers.process("a");
    a.links[0].isolate();
    let (greeting, took) = servers.timed(a.quorum.hello()).await;
    greeting.expect("a quorum");
    assert_eq!(took, ms(500));
}

/// A server whose clock has a name.
#[derive(Debug)]
struct Named(SimBackend, ClockId);

impl Named {
    fn name<T>(
        &self,
        mut answers: Vec<Result<Stamped<T>, BackendError>>,
    ) -> Vec<Result<Stamped<T>, BackendError>> {
        for answer in answers.iter_mut().flatten() {
            answer.stamp.clock = self.1;
        }
        answers
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for Named {
    forward_lock_backend! {
        |wrapper| wrapper.0;
        capabilities runtime clock read_clock listen poll release convert inspect
        force_release list write_note close
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        let mut stamp = self.0.hello().await?;
        stamp.clock = self.1;
        Ok(stamp)
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.name(self.0.acquire(batch).await)
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        self.name(self.0.renew(batch).await)
    }
}

/// The client refuses such a lease itself, so that the error doesn't read as if a server had.
#[tokio::test(start_paused = true)]
async fn client_refuses_a_longer_lease() {
    let servers = Servers::start(57);
    let a = servers.process("a");
    let locks = LockClient::new(Arc::clone(&a.quorum));
    let mutex = locks.mutex("k").expect("valid").lease(secs(31));
    let error = mutex.try_lock().await.expect_err("too long").to_string();
    let message = "key \"k\": a lease of 31s is outside the limits (100ms to 30s)";
    assert_eq!(error, message);
    servers.assert_untouched();
}
