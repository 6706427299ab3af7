//! What the command waits for: signals, lines of the keeper, and time.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{
    SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use crate::clock::now;
use crate::run::keeper::Keeper;

/// The signals that CMD gets too.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
/// The command looks at the clock at least this often: the time of a suspend doesn't count for `poll`.
const TICK: Duration = Duration::from_millis(100);

pub(super) fn is_passed_on(signal: i32) -> bool {
    PASSED_ON.contains(&signal)
}

pub(super) struct Events {
    signals: SignalDelivery<UnixStream, SignalOnly>,
}

impl Events {
    /// Handles the signals from now on, except those that are ignored: by `nohup`, or in the background of
    /// a script. CMD inherits that.
    pub(super) fn new() -> std::io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let ignored = ignored();
        let passed_on = PASSED_ON
            .into_iter()
            .filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let handled = passed_on.chain([SIGCHLD, SIGTTIN, SIGTTOU]);
        let signals = SignalDelivery::with_pipe(read, write, SignalOnly, handled)?;
        Ok(Self { signals })
    }

    /// Waits for a signal, for the keeper if there is one, or until this moment, but not much longer than a tick. Returns
    /// the signals.
    pub(super) fn wait(
        &mut self,
        keeper: Option<&Keeper>,
        until: Option<Duration>,
    ) -> std::io::Result<Vec<i32>> {
        let limit = until.map_or(TICK, |until| until.saturating_sub(now()).min(TICK));
        let limit = Timespec::try_from(limit).unwrap_or_default();
        let mut ready = vec![PollFd::new(self.signals.get_read(), PollFlags::IN)];
        let output = keeper.and_then(Keeper::output);
        ready.extend(output.map(|it| PollFd::new(it, PollFlags::IN)));
        match poll(&mut ready, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.signals.pending().collect())
    }
}

/// The signals that this process ignores, as bits. On Linux only; elsewhere they are handled.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0)
}
