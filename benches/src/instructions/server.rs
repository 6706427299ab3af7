//! Counts the instructions of a server that serves a queue.

use std::collections::VecDeque;
use std::env;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold_api::{
    Acquire, ClockId, Key, Label, LockSpec, Mode, Operation, OwnerId, Poll, Release, Renew,
    ServerTime, SessionId, Wait,
};
use leasehold_redis_common::script::{Call, Protocol, ScriptSettings};
use redis::{Connection, cmd};

use crate::Result;
use crate::instructions::callgrind;

/// The variable that names the server; the default is the one in `PATH`.
const VARIABLE: &str = "LEASEHOLD_REDIS_SERVER";
const START_WITHIN: Duration = Duration::from_secs(60);
/// The turns of the shorter run. The longer one has twice as many.
const TIMES: u32 = 400;
/// Nothing expires during a count.
const LEASE: Duration = Duration::from_secs(3_600);
/// The clock that messages name.
const CLOCK: ClockId = ClockId::new(1);
const LONGEST_WAITER_LEASE: Duration = Duration::from_secs(60);

/// The waiters that may get their turn within a count. They poll while the queue is built.
const FIRST: u64 = 2 * TIMES as u64 + 2;
/// The polls of those come after this many acquires, in batches of this many.
const POLL_EVERY: u64 = 500;
const POLL_BATCH: usize = 50;
/// The permits of the semaphore.
const PERMITS: u32 = 4;
/// One of this many clients of a reader/writer lock writes. The others read.
const WRITERS: u64 = 4;

/// A queue on a server, and what is counted.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The name in the baseline.
    pub name: &'static str,
    /// What is counted.
    pub turn: Turn,
    /// The number of clients that hold the lock or wait.
    pub clients: u64,
}

/// What happens again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The holder of a mutex releases, the next client is notified, and the previous holder queues
    /// again.
    HandOver,
    /// The same with a semaphore of four permits, of which each client takes one.
    Permit,
    /// The same with a reader/writer lock, on which a writer and three readers take turns.
    Readers,
    /// A waiter in the middle of the queue of a mutex leaves, and queues again at its end.
    Leave,
    /// A waiter polls.
    Poll,
    /// The holder renews.
    Renew,
}

/// All queues to count.
#[must_use]
pub const fn queues() -> [Queue; 16] {
    use Turn::{HandOver, Leave, Permit, Poll, Readers};
    [
        queue("server.hand_over_2", HandOver, 2),
        queue("server.hand_over_15", HandOver, 15),
        queue("server.hand_over_17", HandOver, 17),
        queue("server.hand_over_64", HandOver, 64),
        queue("server.hand_over_200", HandOver, 200),
        queue("server.hand_over_1000", HandOver, 1_000),
        queue("server.hand_over_10000", HandOver, 10_000),
        queue("server.permit_8", Permit, 8),
        queue("server.permit_64", Permit, 64),
        queue("server.readers_8", Readers, 8),
        queue("server.readers_64", Readers, 64),
        queue("server.leave_64", Leave, 64),
        queue("server.poll_64", Poll, 64),
        queue("server.renew_1", Turn::Renew, 1),
        queue("server.renew_15", Turn::Renew, 15),
        queue("server.renew_64", Turn::Renew, 64),
    ]
}

const fn queue(name: &'static str, turn: Turn, clients: u64) -> Queue {
    Queue {
        name,
        turn,
        clients,
    }
}

impl Queue {
    /// Counts the server's instructions of one turn.
    pub fn count(&self) -> Result<f64> {
        callgrind::of_one(TIMES, |times| self.whole(times.into()))
    }

    /// Counts the instructions of a server from its start to its end.
    fn whole(&self, times: u64) -> Result<u64> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("socket");
        let program = env::var_os(VARIABLE).unwrap_or_else(|| "redis-server".into());
        let mut server = callgrind::start(|command| {
            command
                .arg(program)
                // The server's regular work depends on the time that passes, so there is little of it.
                .args(["--port", "0", "--save", "", "--hz", "1", "--unixsocket"])
                .arg(&socket)
                .arg("--dir")
                .arg(folder.path());
        })?;
        let played = connect(&socket).and_then(|client| self.play(&client, times));
        if played.is_err() {
            server.kill()?;
        }
        match (played, callgrind::finish(server)) {
            (Err(error), Err(ended)) => Err(format!("{error}\n{ended}").into()),
            (played, counted) => played.and(counted),
        }
    }
}

/// Waits until the server answers.
fn connect(socket: &Path) -> Result<redis::Client> {
    let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
    let begun = Instant::now();
    while let Err(error) = client.get_connection() {
        if begun.elapsed() > START_WITHIN {
            return Err(error.into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(client)
}

impl Queue {
    /// Queues all clients, plays the turns, and ends the server.
    fn play(self, client: &redis::Client, times: u64) -> Result<()> {
        let commands = client.get_connection()?;
        let mut pushes = client.get_connection()?;
        pushes.set_read_timeout(Some(START_WITHIN))?;
        commands.set_read_timeout(Some(START_WITHIN))?;
        let protocol = Protocol::new("leasehold:", ScriptSettings::default())?;
        let mut pushes = pushes.as_pubsub();
        for client in 0..self.clients.min(FIRST) {
            pushes.subscribe(protocol.channel(&operation(client, 1).session))?;
        }
        let mut play = Play {
            queue: self,
            commands,
            protocol,
            key: Key::new("customers/0123456789abcd")?,
            order: (0..self.clients).collect(),
            sequences: vec![0; usize::try_from(self.clients)?],
        };
        play.fill()?;
        for turn in 0..times {
            for _ in 0..play.turn(turn)? {
                pushes.get_message()?;
            }
        }
        drop(pushes);
        // The server closes the connection instead of answering.
        let _closed = cmd("SHUTDOWN")
            .arg("NOSAVE")
            .query::<()>(&mut play.commands);
        Ok(())
    }

    fn holders(&self) -> u64 {
        match self.turn {
            Turn::Permit => u64::from(PERMITS),
            _ => 1,
        }
    }

    fn mode(&self, client: u64) -> Mode {
        match self.turn {
            Turn::Permit => Mode::Permits(1),
            Turn::Readers if !client.is_multiple_of(WRITERS) => Mode::Shared,
            _ => Mode::Exclusive,
        }
    }

    fn spec(&self) -> Result<LockSpec> {
        let spec = match self.turn {
            Turn::Permit => LockSpec::semaphore(PERMITS)?,
            Turn::Readers => LockSpec::rw_lock(),
            _ => LockSpec::mutex(),
        };
        Ok(spec.with_waiter_lease(LONGEST_WAITER_LEASE)?)
    }

    /// The number of clients that get the lock when this one releases it.
    fn grants(&self, client: u64) -> u64 {
        match (self.turn, client % WRITERS) {
            (Turn::Readers, 0) => WRITERS - 1,
            (Turn::Readers, reader) => u64::from(reader == WRITERS - 1),
            _ => 1,
        }
    }
}

/// The clients of a queue.
struct Play {
    queue: Queue,
    commands: Connection,
    protocol: Protocol,
    key: Key,
    /// The clients that hold the lock, and those that wait, in order.
    order: VecDeque<u64>,
    sequences: Vec<u64>,
}

impl Play {
    fn fill(&mut self) -> Result<()> {
        let holders = self.queue.holders();
        for client in 0..self.queue.clients {
            self.acquire(client, if client < holders { b'A' } else { b'Q' })?;
            if client % POLL_EVERY == POLL_EVERY - 1 || client + 1 == self.queue.clients {
                // Without a poll, the first waiters of a long queue would expire before their turn.
                let end = (client + 1).min(FIRST);
                for from in (holders..end).step_by(POLL_BATCH) {
                    self.poll(from..(from + POLL_BATCH as u64).min(end))?;
                }
            }
        }
        Ok(())
    }

    /// Plays a turn. Returns the number of messages that it causes.
    fn turn(&mut self, turn: u64) -> Result<u64> {
        let index = match self.queue.turn {
            Turn::Leave => self.order.len() / 2,
            Turn::Poll => {
                let waiters = self.queue.clients.min(FIRST) - 1;
                let waiter = 1 + turn % waiters;
                self.poll(waiter..waiter + 1)?;
                return Ok(0);
            }
            Turn::Renew => {
                let renew = Renew::new(self.key.clone(), self.operation(0)?, LEASE)?;
                run(&mut self.commands, &self.protocol.renew(&[renew]), b'N')?;
                return Ok(0);
            }
            _ => 0,
        };
        let client = self.order.remove(index).ok_or("nobody waits")?;
        let release = Release::new(self.key.clone(), self.operation(client)?);
        let call = self.protocol.release(&[release]);
        let left = self.queue.turn == Turn::Leave;
        run(&mut self.commands, &call, if left { b'L' } else { b'R' })?;
        self.acquire(client, b'Q')?;
        self.order.push_back(client);
        Ok(if left { 0 } else { self.queue.grants(client) })
    }

    fn operation(&self, client: u64) -> Result<Operation> {
        Ok(operation(client, self.sequences[usize::try_from(client)?]))
    }

    fn poll(&mut self, clients: Range<u64>) -> Result<()> {
        let poll = |client| Ok(Poll::new(self.key.clone(), self.operation(client)?, true));
        let polls = clients.map(poll).collect::<Result<Vec<_>>>()?;
        run(&mut self.commands, &self.protocol.poll(&polls), b'Q')
    }

    fn acquire(&mut self, client: u64, expected: u8) -> Result<()> {
        self.sequences[usize::try_from(client)?] += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let before = u64::try_from((now + Duration::from_secs(9)).as_micros())?;
        let request = Acquire::new(
            self.key.clone(),
            self.queue.spec()?,
            self.queue.mode(client),
            self.operation(client)?,
            LEASE,
            ServerTime::from_micros(before),
        )?;
        let label = Label::new("worker-7.example.com:12345")?;
        let request = request.with_label(label).with_wait(Wait::new(true));
        run(
            &mut self.commands,
            &self.protocol.acquire(&[request]),
            expected,
        )
    }
}

/// Runs a script call. Fails if the answer is not of the expected kind.
fn run(commands: &mut Connection, call: &Call, expected: u8) -> Result<()> {
    let call = call.to_server(CLOCK);
    let mut evaluate = |name: &str, script: &str| -> redis::RedisResult<Vec<u8>> {
        let mut command = cmd(name);
        command.arg(script).arg(call.key_count());
        for word in call.words() {
            command.arg(word);
        }
        command.query(commands)
    };
    let answer = match evaluate("EVALSHA", call.script().sha1()) {
        Err(error) if error.code() == Some("NOSCRIPT") => evaluate("EVAL", call.script().source())?,
        answer => answer?,
    };
    // The kind follows the status and the time.
    match answer.get(9) {
        Some(kind) if *kind == expected => Ok(()),
        _ => Err(format!("expected {}: {answer:?}", char::from(expected)).into()),
    }
}

fn operation(client: u64, sequence: u64) -> Operation {
    // Consecutive numbers, spread over all bytes as in a real session id.
    let spread = u128::from(client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Operation {
        session: SessionId::from_bytes(spread.to_le_bytes()),
        sequence,
        owner: OwnerId::from_u64(client),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_test_servers::RedisServer;

    use super::*;

    #[test]
    fn turns_of_short_and_long_queues_run() -> Result<()> {
        for queue in queues().iter().filter(|queue| queue.clients <= 64) {
            let server = RedisServer::start();
            queue.play(&connect(server.socket_path().as_ref())?, 100)?;
        }
        Ok(())
    }
}
