//! The cases to count.

use std::env;
use std::hint::black_box;
use std::time::Duration;

use leasehold::LockClient;
use leasehold::sim::{Ending, SimOptions, SimServer, Simulation};
use leasehold_api::machine::{Command, Env, Message, Payload, Reach, Reply, Settings, State, step};
use leasehold_api::{
    Acquire, AcquireReply, ClockId, Key, LockSpec, Mode, Operation, OwnerId, Release, ReleaseReply,
    Renew, ServerTime, SessionId, Wait,
};
use leasehold_redis_common::script::{Protocol, ScriptSettings, decode_notification, reply};

use crate::Result;
use crate::instructions::callgrind;

const LEASE: Duration = Duration::from_secs(30);
/// A key of 24 bytes, like one that a service would use for a customer's record.
const NAME: &str = "customers/0123456789abcd";
/// The maximum batch size.
const BATCH: usize = leasehold_api::bounds::MAX_BATCH;
/// The number of clients in the queue.
const QUEUE: u64 = 8;

/// A part of leasehold that runs without a server.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name in the baseline.
    pub name: &'static str,
    /// The number of iterations per measurement.
    pub times: u32,
    /// Runs this many iterations. It fails if one has another result than expected, because the count would then
    /// say nothing.
    pub play: fn(u32) -> Result<()>,
}

impl Case {
    /// Counts the instructions of one iteration. Runs this program again, with `--play NAME --times N`.
    pub fn count(&self) -> Result<f64> {
        let program = env::current_exe()?;
        callgrind::of_one(self.times, |times| {
            callgrind::finish(callgrind::start(|command| {
                let times = times.to_string();
                command
                    .arg(&program)
                    .args(["--play", self.name, "--times", &times]);
            })?)
        })
    }
}

/// All cases.
#[must_use]
pub const fn cases() -> [Case; 12] {
    [
        case("sim.pair", 500, |times| play(1, times)),
        case("sim.contended_pair", 500, |times| play(8, times / 8)),
        case("machine.pair", 10_000, machine_pairs),
        case("machine.hand_over", 10_000, machine_hand_overs),
        case("protocol.key", 100_000, keys),
        case("protocol.acquire", 20_000, acquires),
        case("protocol.release", 20_000, releases),
        case("protocol.renewals", 500, renewals),
        case("protocol.acquire_reply", 50_000, acquire_replies),
        case("protocol.release_reply", 50_000, release_replies),
        case("protocol.renewal_replies", 1_000, renewal_replies),
        case("protocol.notification", 50_000, notifications),
    ]
}

const fn case(name: &'static str, times: u32, play: fn(u32) -> Result<()>) -> Case {
    Case { name, times, play }
}

/// Runs `clients` clients that acquire and release one lock `rounds` times each.
fn play(clients: u32, rounds: u32) -> Result<()> {
    let options = SimOptions::new(1).log_limit(0).recording(false);
    let report = Simulation::new(options)
        .step_limit(u64::MAX)
        .run(|sim| contend(sim, clients, rounds));
    match report.ending {
        Ending::Completed(Ok(())) => Ok(()),
        Ending::Completed(Err(error)) => Err(error.into()),
        other => Err(format!("the simulation did not complete: {other:?}").into()),
    }
}

async fn contend(
    sim: SimServer,
    clients: u32,
    rounds: u32,
) -> std::result::Result<(), leasehold::Error> {
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let locks = LockClient::new(sim.client(&format!("client-{number}")));
            sim.spawn(async move {
                let mutex = locks.mutex("job")?;
                for _ in 0..rounds {
                    mutex.lock().await?.release().await?;
                }
                Ok::<_, leasehold::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

/// The state of one lock, and a clock that advances by 1 ms with each command.
struct Machine {
    state: State,
    now: ServerTime,
}

impl Machine {
    fn new() -> Self {
        Self {
            state: State::default(),
            now: ServerTime::from_micros(1_000_000_000_000),
        }
    }

    fn step(&mut self, command: &Command) -> (Reply, Vec<Message>) {
        self.now = self.now.saturating_add(Duration::from_millis(1));
        let env = Env {
            now: self.now,
            settings: Settings::default(),
            reachable: &|_| Reach::Listening,
        };
        step(&mut self.state, env, command)
    }

    fn acquire(&self, operation: Operation) -> Result<Command> {
        let before = self.now.saturating_add(Duration::from_secs(5));
        Ok(Command::Acquire(acquire(operation, before)?))
    }
}

/// A request of a client that would wait.
fn acquire(operation: Operation, before: ServerTime) -> Result<Acquire> {
    let (key, spec, mode) = (Key::new(NAME)?, LockSpec::mutex(), Mode::Exclusive);
    let request = Acquire::new(key, spec, mode, operation, LEASE, before)?;
    Ok(request.with_wait(Wait::new(true)))
}

fn operation(client: u64, sequence: u64) -> Operation {
    Operation {
        session: SessionId::from_bytes(u128::from(client).to_le_bytes()),
        sequence,
        owner: OwnerId::from_u64(client),
    }
}

/// One client acquires and releases a free lock.
fn machine_pairs(times: u32) -> Result<()> {
    let mut machine = Machine::new();
    for sequence in 1..=u64::from(times) {
        let operation = operation(1, sequence);
        let (reply, _) = machine.step(&machine.acquire(operation)?);
        let release = Command::Release(Release::new(Key::new(NAME)?, operation));
        let (released, _) = machine.step(&release);
        if !matches!(reply, Reply::Acquire(AcquireReply::Acquired(_))) || !is_released(&released) {
            return Err(format!("not a pair: {reply:?}, {released:?}").into());
        }
    }
    Ok(())
}

const fn is_released(reply: &Reply) -> bool {
    matches!(reply, Reply::Release(ReleaseReply::Released { .. }))
}

/// Clients in a queue: the holder releases, the next client is notified, and the previous holder
/// queues again.
fn machine_hand_overs(times: u32) -> Result<()> {
    let mut machine = Machine::new();
    for client in 0..QUEUE {
        machine.step(&machine.acquire(operation(client, 1))?);
    }
    for turn in 0..u64::from(times) {
        let (client, sequence) = (turn % QUEUE, turn / QUEUE + 1);
        let release = Release::new(Key::new(NAME)?, operation(client, sequence));
        let (reply, messages) = machine.step(&Command::Release(release));
        let granted = matches!(
            messages[..],
            [Message {
                payload: Payload::Granted { .. },
                ..
            }]
        );
        let (queued, _) = machine.step(&machine.acquire(operation(client, sequence + 1))?);
        let queued = matches!(queued, Reply::Acquire(AcquireReply::Queued(_)));
        if !is_released(&reply) || !granted || !queued {
            return Err(format!("not a hand-over: {reply:?}, {messages:?}").into());
        }
    }
    Ok(())
}

fn protocol() -> Result<Protocol> {
    Ok(Protocol::new("leasehold:", ScriptSettings::default())?)
}

fn keys(times: u32) -> Result<()> {
    let (protocol, key) = (protocol()?, Key::new(NAME)?);
    for _ in 0..times {
        black_box(protocol.key(black_box(&key)));
    }
    Ok(())
}

fn acquires(times: u32) -> Result<()> {
    let protocol = protocol()?;
    let before = ServerTime::from_micros(1_000_000_000_000);
    let request = acquire(operation(1, 1), before)?;
    for _ in 0..times {
        black_box(protocol.acquire(black_box(std::slice::from_ref(&request))));
    }
    Ok(())
}

fn releases(times: u32) -> Result<()> {
    let protocol = protocol()?;
    let request = [Release::new(Key::new(NAME)?, operation(1, 1))];
    for _ in 0..times {
        black_box(protocol.release(black_box(&request)));
    }
    Ok(())
}

fn renewals(times: u32) -> Result<()> {
    let (protocol, key) = (protocol()?, Key::new(NAME)?);
    let renew = |sequence| Renew::new(key.clone(), operation(1, sequence), LEASE);
    let batch = (0..BATCH as u64).map(renew);
    let batch = batch.collect::<std::result::Result<Vec<_>, _>>()?;
    for _ in 0..times {
        black_box(protocol.renew(black_box(&batch)));
    }
    Ok(())
}

/// Builds bytes as the scripts pack them: a number is a double, a count has four bytes.
#[derive(Default)]
struct Packed(Vec<u8>);

impl Packed {
    fn text(mut self, text: &str) -> Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn number(mut self, number: f64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn count(mut self, count: u32) -> Self {
        self.0.extend_from_slice(&count.to_le_bytes());
        self
    }
}

/// The start of each element: the status "executed", and the time of execution.
fn executed() -> Packed {
    Packed::default().text("=").number(1e15)
}

const CLOCK: ClockId = ClockId::new(1);

fn acquire_replies(times: u32) -> Result<()> {
    let Packed(bytes) = executed().text("A").number(1e15).count(1).number(3e7);
    for _ in 0..times {
        black_box(reply::acquires(black_box(&bytes), 1, CLOCK).remove(0)?);
    }
    Ok(())
}

fn release_replies(times: u32) -> Result<()> {
    let Packed(bytes) = executed().text("R").count(0);
    for _ in 0..times {
        for answer in reply::releases(black_box(&bytes), 1, CLOCK) {
            black_box(answer?);
        }
    }
    Ok(())
}

fn renewal_replies(times: u32) -> Result<()> {
    let Packed(one) = executed().text("N").number(1e15).number(3e7);
    let bytes = one.repeat(BATCH);
    for _ in 0..times {
        for answer in reply::renewals(black_box(&bytes), BATCH, CLOCK) {
            black_box(answer?);
        }
    }
    Ok(())
}

fn notifications(times: u32) -> Result<()> {
    let stamp = Packed::default().number(1e15).text("8 bytes.");
    let granted = stamp.text("G").number(7.0);
    let Packed(bytes) = granted.number(1e15).number(5e6);
    for _ in 0..times {
        black_box(decode_notification(black_box(&bytes))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_runs() -> Result<()> {
        for case in cases() {
            (case.play)(16).map_err(|error| format!("{}: {error}", case.name))?;
        }
        Ok(())
    }
}
