//! Counts the instructions of a server that passes a lock along a queue.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold_api::{
    Acquire, Key, Label, LockSpec, Mode, Operation, OwnerId, Poll, Release, ServerTime, SessionId,
    Wait,
};
use leasehold_redis_common::script::{Call, Protocol, ScriptSettings};
use redis::{Connection, cmd};

use super::callgrind::{cannot_start, collected};
use crate::Result;

/// The variable that names the server; the default is the one in `PATH`.
const VARIABLE: &str = "LEASEHOLD_REDIS_SERVER";
const START_WITHIN: Duration = Duration::from_secs(60);
/// The hand-overs of the shorter run. The longer one has twice as many.
const TIMES: u64 = 400;
/// Nothing expires during a count.
const LEASE: Duration = Duration::from_secs(3_600);
const LONGEST_WAITER_LEASE: Duration = Duration::from_secs(60);

/// A queue on a server: the holder releases, the next client is notified, and the previous holder
/// queues again.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The name in the baseline.
    pub name: &'static str,
    /// The number of clients: one holds the lock and the others wait.
    pub clients: u64,
}

/// All queues to count.
#[must_use]
pub const fn queues() -> [Queue; 6] {
    [
        queue("server.hand_over_2", 2),
        queue("server.hand_over_15", 15),
        queue("server.hand_over_17", 17),
        queue("server.hand_over_64", 64),
        queue("server.hand_over_200", 200),
        queue("server.hand_over_1000", 1_000),
    ]
}

const fn queue(name: &'static str, clients: u64) -> Queue {
    Queue { name, clients }
}

impl Queue {
    /// Counts the server's instructions of one hand-over: the release that grants and the acquire
    /// that queues again. This is the difference between N and 2 N hand-overs, divided by N.
    ///
    /// # Errors
    /// If valgrind or the server is missing, or a hand-over fails.
    pub fn count(&self, valgrind: &Path) -> Result<f64> {
        let (once, twice) = (
            self.whole(valgrind, TIMES)?,
            self.whole(valgrind, 2 * TIMES)?,
        );
        let more = twice.checked_sub(once);
        let more = more.ok_or("twice the hand-overs took fewer instructions")?;
        Ok(more as f64 / TIMES as f64)
    }

    /// Counts the instructions of a server from its start to its end.
    fn whole(&self, valgrind: &Path, times: u64) -> Result<u64> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("socket");
        let program = env::var_os(VARIABLE).unwrap_or_else(|| "redis-server".into());
        let mut server = Command::new(valgrind)
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            // The server's regular work depends on the time that passes, so there is little of it.
            .args(["--port", "0", "--save", "", "--hz", "1", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| cannot_start(valgrind, &error))?;
        let played = connect(&socket).and_then(|client| play(&client, self.clients, times));
        if played.is_err() {
            server.kill()?;
        }
        let output = server.wait_with_output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        played.map_err(|error| format!("{}: {error}\n{stderr}", self.name))?;
        collected(&stderr).ok_or_else(|| format!("callgrind printed no count: {stderr}").into())
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

/// Queues all clients, hands the lock over, and ends the server.
fn play(client: &redis::Client, clients: u64, times: u64) -> Result<()> {
    let (mut commands, mut pushes) = (client.get_connection()?, client.get_connection()?);
    commands.set_read_timeout(Some(START_WITHIN))?;
    pushes.set_read_timeout(Some(START_WITHIN))?;
    let protocol = Protocol::new("leasehold:", ScriptSettings::default())?;
    let key = Key::new("customers/0123456789abcd")?;
    let mut run = |call: &Call, expected: u8| run(&mut commands, call, expected);
    let mut pushes = pushes.as_pubsub();
    for client in 0..clients {
        pushes.subscribe(protocol.channel(&operation(client, 1).session))?;
    }
    for client in 0..clients {
        let expected = if client == 0 { b'A' } else { b'Q' };
        run(&protocol.acquire(&[acquire(&key, client, 1)?]), expected)?;
    }
    // Without a poll, the first waiters of a long queue would expire before their turn.
    for client in 1..clients.min(2 * TIMES + 2) {
        let poll = Poll::new(key.clone(), operation(client, 1), true);
        run(&protocol.poll(&[poll]), b'Q')?;
    }
    for turn in 0..times {
        let (client, sequence) = (turn % clients, turn / clients + 1);
        let release = Release::new(key.clone(), operation(client, sequence));
        run(&protocol.release(&[release]), b'R')?;
        pushes.get_message()?;
        run(
            &protocol.acquire(&[acquire(&key, client, sequence + 1)?]),
            b'Q',
        )?;
    }
    drop(pushes);
    // The server closes the connection instead of answering.
    let _closed = cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut commands);
    Ok(())
}

/// Runs a script call. Fails if the answer is not of the expected kind.
fn run(commands: &mut Connection, call: &Call, expected: u8) -> Result<()> {
    let mut evaluate = |name: &str, script: &str| -> redis::RedisResult<Vec<u8>> {
        let mut command = cmd(name);
        command.arg(script).arg(call.elements());
        for word in call.keys().chain(call.args()) {
            command.arg(word);
        }
        command.query(commands)
    };
    let answer = match evaluate("EVALSHA", call.script.sha1()) {
        Err(error) if error.code() == Some("NOSCRIPT") => evaluate("EVAL", call.script.source())?,
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

fn acquire(key: &Key, client: u64, sequence: u64) -> Result<Acquire> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let before = u64::try_from((now + Duration::from_secs(9)).as_micros())?;
    let spec = LockSpec::mutex().with_waiter_lease(LONGEST_WAITER_LEASE)?;
    let request = Acquire::new(
        key.clone(),
        spec,
        Mode::Exclusive,
        operation(client, sequence),
        LEASE,
        ServerTime::from_micros(before),
    )?;
    let label = Label::new("worker-7.example.com:12345")?;
    Ok(request.with_label(label).with_wait(Wait::new(true)))
}

#[cfg(test)]
mod tests {
    use leasehold_test_servers::RedisServer;

    use super::*;

    #[test]
    fn hand_overs_of_a_short_and_a_long_queue_run() -> Result<()> {
        for clients in [2, 40] {
            let server = RedisServer::start();
            play(&connect(server.socket_path().as_ref())?, clients, 100)?;
        }
        Ok(())
    }
}
