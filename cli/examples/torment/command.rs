//! One command, and what is done to it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::{KEYS, LEASE, now};

/// The longest time that a process is stopped: longer than a lease.
const LONGEST_STOP: u64 = 8_000;
/// No command takes so long, not even one that waits.
const HANGS: Duration = Duration::from_secs(300);

/// What the commands have in common.
pub(crate) struct Torment {
    pub(crate) program: PathBuf,
    pub(crate) own: PathBuf,
    pub(crate) url: String,
    /// Where CMD says that it is alive.
    pub(crate) file: PathBuf,
}

/// What became of a command.
#[derive(Debug)]
pub(crate) struct Fate {
    /// The last thing that was done to it, and how it ended.
    pub(crate) ended: String,
    /// The process ids of the keepers, which are in their labels: one for each time that the command stood for election.
    pub(crate) keepers: Vec<i32>,
    /// When the command and the keeper were dead.
    pub(crate) dead: Duration,
}

/// The processes of a command: itself, its keeper, and CMD, or what becomes CMD.
struct Victim {
    processes: [Option<Pid>; 3],
    /// All keepers so far.
    keepers: Vec<i32>,
}

const NAMES: [&str; 4] = ["the command", "its keeper", "CMD", "all of them"];

impl Torment {
    pub(crate) fn run(&self, number: usize, random: &mut Rng) -> Fate {
        let mut child = self.command(number, random).spawn().expect("it starts");
        let mut victim = Victim {
            processes: [Some(Pid::from_child(&child)), None, None],
            keepers: Vec::new(),
        };
        let (began, mut fault, mut is_killed) = (now(), String::new(), false);
        loop {
            // Most of what can go wrong is at the beginning.
            let most = if random.bool() { 150 } else { 1_500 };
            if victim.ends_within(&mut child, Duration::from_millis(random.u64(..most))) {
                break;
            }
            assert!(now() - began < HANGS, "command {number} hangs: {fault}");
            // Of the two processes that watch CMD, one may be ill.
            if !is_killed && random.u8(..3) > 0 {
                let (target, kills) = (random.usize(..4), random.bool());
                is_killed = (kills || target == 3) && victim.kill(target);
                let hit = is_killed || (!kills && target < 3 && victim.stop(target, random));
                if hit {
                    let what = if is_killed { "killed" } else { "stopped" };
                    fault = format!("{what} {}: ", NAMES[target]);
                }
            }
        }
        Fate {
            ended: format!("{fault}{}", child.wait().expect("a child")),
            keepers: victim.keepers,
            dead: now(),
        }
    }

    fn command(&self, number: usize, random: &mut Rng) -> Command {
        let key = random.usize(..KEYS.len());
        let lease = format!("{LEASE:?}");
        let mut command = Command::new(&self.program);
        command.args(["run", "--kill-after", "1s", "--lease", &lease]);
        // A kind of lock for each key.
        let election = ["--info", "me", "--again"];
        command.args([&[][..], &["-x"], &["-n", "1"], &election][key]);
        let waits = [&["--wait", "5s"][..], &[], &[], &["--no-wait"]];
        // A candidate waits.
        command.args(waits[random.usize(..if key == 3 { 3 } else { 4 })]);
        command.args([KEYS[key], "--"]).arg(&self.own);
        command.arg("--alive").arg(&self.file);
        command.env("LEASEHOLD_URL", &self.url);
        command.env("NUMBER", number.to_string());
        command.env("MILLIS", random.u64(100..2_500).to_string());
        command.env("STUBBORN", random.bool().to_string());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Victim {
    /// Looks for the processes that the command has started.
    fn look(&mut self) {
        let id = self.processes[0].map_or(0, Pid::as_raw_pid);
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let has = |name: &str| {
                let mut words = line.split(|byte| *byte == 0);
                words.any(|it| it == name.as_bytes())
            };
            let pid = child.parse().ok().and_then(Pid::from_raw);
            if has("__keep") {
                self.processes[1] = pid;
                let id = pid.map_or(0, Pid::as_raw_pid);
                if !self.keepers.contains(&id) {
                    self.keepers.push(id);
                }
            } else if has("__start") || (has("--alive") && !has("run")) {
                self.processes[2] = pid;
            }
        }
    }

    /// Waits until the command and the keeper have ended. Returns whether they have.
    fn ends_within(&mut self, child: &mut Child, limit: Duration) -> bool {
        let until = now() + limit;
        loop {
            self.look();
            let ended = child.try_wait().expect("a child").is_some();
            if ended && !self.processes[1].is_some_and(is_alive) {
                return true;
            }
            if now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills one of the processes, or all, as if the machine died. Returns whether there was one.
    fn kill(&mut self, target: usize) -> bool {
        self.look();
        // Nobody would know the keeper of a command that is dead.
        let known = self.processes[1].is_some();
        let all = self
            .processes
            .iter()
            .enumerate()
            .filter(|(n, _)| target == 3 || *n == target);
        let kill = |pid: Pid| kill_process(pid, Signal::KILL).is_ok();
        let killed = all.filter_map(|(_, pid)| pid.filter(|_| known).map(kill));
        killed.fold(false, |any, it| any | it)
    }

    fn stop(&mut self, target: usize, random: &mut Rng) -> bool {
        self.look();
        let Some(process) = self.processes[target] else {
            return false;
        };
        let stopped = kill_process(process, Signal::STOP).is_ok();
        std::thread::sleep(Duration::from_millis(random.u64(10..LONGEST_STOP)));
        let _ = kill_process(process, Signal::CONT);
        stopped
    }
}

/// Whether a process runs, and is no zombie.
fn is_alive(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid()));
    let stat = stat.unwrap_or_default();
    let rest = stat.rsplit_once(") ").map_or("", |it| it.1);
    !rest.is_empty() && !rest.starts_with(['Z', 'X'])
}
