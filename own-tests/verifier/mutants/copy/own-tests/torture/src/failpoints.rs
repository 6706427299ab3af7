//! Failpoints in client processes: by chance, a task that reaches one stops there, while the others of its process go on, or the
//! process dies. The client tells the controller, so the history has it.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use leasehold_api::BoxFuture;
use leasehold_api::mutants::failpoints::{self, OF_LOCKS};

use crate::Failure;
use crate::checker::Verdict;
use crate::history::{Fault, History};
use crate::record::Record;
use crate::topology::within;

/// Switches them on, for the controller.
const ON: &str = "LEASEHOLD_FAILPOINTS";
/// The number of the client, and where it tells what happens.
const CLIENT: &str = "LEASEHOLD_FAILPOINTS_OF_CLIENT";
/// One of so many arrivals at a place is disturbed: the task stops there.
const HAPPENS: usize = 30;
/// One of so many disturbed ones kills the process instead.
const DIES: usize = 12;
/// The kinds of faults, with the name of the place after it.
const STOPS: &str = "a task stops at ";
const DEATH: &str = "dies at ";
/// How late the controller may hear of it, or the task go on.
const LATE: Duration = Duration::from_millis(50);

struct Client {
    name: String,
    path: PathBuf,
    lease: Duration,
}

static THIS: OnceLock<Client> = OnceLock::new();

/// In a client process.
pub(crate) fn arm(lease: Duration) {
    let told = std::env::var(CLIENT).unwrap_or_default();
    if let Some((name, path)) = told.split_once(' ') {
        let (name, path) = (name.into(), path.into());
        THIS.get_or_init(|| Client { name, path, lease });
        failpoints::everywhere(reached);
    }
}

fn reached(place: &'static str) -> Option<BoxFuture<'static, ()>> {
    let this = THIS.get().filter(|_| fastrand::usize(..HAPPENS) == 0)?;
    let dies = fastrand::usize(..DIES) == 0;
    let (what, leases) = if dies {
        (DEATH, 0.0)
    } else {
        (STOPS, 1.5 * fastrand::f64())
    };
    let time = this.lease.mul_f64(leases);
    let text = format!("{} {} {what}{place}", this.name, time.as_millis());
    let told = UnixDatagram::unbound().and_then(|it| it.send_to(text.as_bytes(), &this.path));
    // Without a controller, nobody would know.
    if dies || told.is_err() {
        std::process::abort();
    }
    Some(Box::pin(tokio::time::sleep(time)))
}

/// Where clients tell the controller of this run.
pub(crate) fn listen(log: &Path) -> Result<Option<UnixDatagram>, Failure> {
    if std::env::var_os(ON).is_none() {
        return Ok(None);
    }
    let _ = std::fs::remove_file(path(log));
    let socket = UnixDatagram::bind(path(log))?;
    socket.set_read_timeout(Some(LATE))?;
    Ok(Some(socket))
}

fn path(log: &Path) -> PathBuf {
    log.with_extension("failpoints")
}

/// What a client is told by the controller. The probe and the last client are spared.
pub(crate) fn environment(
    log: &Path,
    client: usize,
    clients: usize,
) -> Option<(&'static str, String)> {
    let is_on = std::env::var_os(ON).is_some() && client < clients;
    is_on.then(|| (CLIENT, format!("{client} {}", path(log).display())))
}

/// Notes what happens, each stop when it is over.
pub(crate) fn note(record: &Record, socket: Option<UnixDatagram>) {
    let Some(socket) = socket else { return };
    let (mut stopped, mut text) = (Vec::new(), [0; 128]);
    while !record.has_ended() {
        let heard = socket.recv(&mut text).ok();
        let heard = heard.and_then(|length| std::str::from_utf8(&text[..length]).ok());
        stopped.extend(heard.and_then(|text| event(text, record.now())));
        stopped.retain(|(client, kind, from, until)| {
            let is_over = *until <= record.now();
            if is_over {
                record.fault(within(kind), Some(*client), *from);
            }
            !is_over
        });
    }
    for (client, kind, from, _) in stopped {
        record.fault(within(kind), Some(client), from);
    }
}

fn event(text: &str, now: u64) -> Option<(usize, &'static str, u64, u64)> {
    let mut parts = text.splitn(3, ' ');
    let client = parts.next()?.parse().ok()?;
    let time = Duration::from_millis(parts.next()?.parse().ok()?) + LATE;
    let until = now + u64::try_from(time.as_micros()).ok()?;
    Some((client, parts.next()?.to_owned().leak(), now, until))
}

/// Whether a task of a client stopped. The process went on: it renews other locks, notices losses and answers.
pub(crate) fn is_stop(fault: &Fault) -> bool {
    fault.kind.starts_with(STOPS)
}

/// The failpoints among the kinds of faults.
fn places<'a>(kinds: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
    let place = |kind: &'a String| [STOPS, DEATH].iter().find_map(|it| kind.strip_prefix(it));
    kinds.filter_map(place).collect()
}

pub(crate) fn missing(history: &History) -> Option<String> {
    let (seen, all) = (
        places(history.faults().map(|it| &it.kind)).len(),
        OF_LOCKS.len(),
    );
    let is_on = std::env::var_os(ON).is_some() || seen > 0;
    (is_on && seen * 2 < all).then(|| format!("only {seen} of {all} failpoints were reached"))
}

pub(crate) fn print(verdict: &Verdict) {
    let faults = &verdict.figures.faults;
    for place in places(faults.keys()) {
        let count = |what| faults.get(&format!("{what}{place}")).copied().unwrap_or(0);
        let [stopped, died] = [STOPS, DEATH].map(count);
        println!("  failpoint {place}: {stopped} tasks stopped, {died} processes died");
    }
}
