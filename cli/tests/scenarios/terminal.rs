//! Commands that a person starts on a terminal, with a shell.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_test_servers::{Stopwatch, block_until, within};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::scenarios::support::{LONG, Place, Started};

/// A terminal with a shell, which controls jobs.
pub(crate) struct Screen {
    keyboard: File,
    text: Arc<Mutex<String>>,
    _shell: Started,
}

impl Screen {
    pub(crate) fn open(place: &Place) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&terminal).expect("granted");
        unlockpt(&terminal).expect("unlocked");
        let name = ptsname(&terminal, Vec::new()).expect("a name");
        let name = name.into_string().expect("ASCII");
        let side = || {
            let file = File::options().read(true).write(true).open(&name);
            Stdio::from(file.expect("the other side"))
        };
        let mut shell = Command::new("setsid");
        shell.args(["--ctty", "--wait", "sh", "-c"]);
        shell.arg("exec bash --norc --noprofile -i 2>&0");
        shell.stdin(side()).stdout(side());
        shell.envs([("PS1", "$ "), ("HISTFILE", ""), ("TERM", "dumb")]);
        shell.env("LEASEHOLD_URL", &place.url).env("K", &place.key);
        shell.env("L", env!("CARGO_BIN_EXE_leasehold"));
        shell.current_dir(place.file("."));
        let shell = Started::new(shell);
        let keyboard = File::from(terminal);
        let mut output = keyboard.try_clone().expect("a copy");
        let text = Arc::new(Mutex::new(String::new()));
        let screen = Arc::clone(&text);
        std::thread::spawn(move || {
            let mut bytes = [0; 1_024];
            while let Ok(read) = output.read(&mut bytes)
                && read > 0
            {
                let read = String::from_utf8_lossy(&bytes[..read]);
                screen.lock().expect("no panic").push_str(&read);
            }
        });
        let screen = Self {
            keyboard,
            text,
            _shell: shell,
        };
        screen.expect_prompt();
        screen
    }

    /// Like most terminals, it has a size.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keyboard, size).expect("a terminal");
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        let typed = self.keyboard.write_all(text.as_bytes());
        typed.expect("the terminal is open");
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().expect("no panic").clone()
    }

    /// Waits until this text appears.
    pub(crate) fn expect(&self, text: &str) {
        self.wait(text, |screen| screen.contains(text));
    }

    /// Waits until the shell wants the next line. What is typed while it takes the terminal back may get
    /// lost.
    pub(crate) fn expect_prompt(&self) {
        self.wait("a prompt", |screen| screen.ends_with("$ "));
    }

    fn wait(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let seen = within(LONG, || condition(&self.text()));
        assert!(seen, "no {what:?} in {:?}", self.text());
    }
}

/// CMD reads from the terminal. Afterwards, the script does.
pub(crate) fn reads_from_the_terminal(place: &Place) {
    let script =
        "$L run $K -- sh -c 'echo runs; read x; echo \"cmd:$x\"'; read y; echo \"script:$y\"";
    std::fs::write(place.file("script"), script).expect("written");
    let mut screen = Screen::open(place);
    screen.type_in("sh script\n");
    screen.expect("runs");
    screen.type_in("first\n");
    screen.expect("cmd:first");
    screen.type_in("second\n");
    screen.expect("script:second");
}

/// Ctrl-C ends CMD, and the shell sees the signal.
pub(crate) fn interrupted_from_the_terminal(place: &Place) {
    let mut screen = Screen::open(place);
    screen.type_in("$L run $K -- sh -c 'echo ru\"\"ns; sleep 60'\n");
    screen.expect("runs");
    // `sh -c` catches SIGINT. It misses one that arrives just before it starts `sleep`.
    block_until("a prompt", || {
        screen.type_in("\u{3}");
        within(Duration::from_secs(1), || screen.text().ends_with("$ "))
    });
    screen.type_in("echo status:$?\n");
    screen.expect("status:130");
    let client = place.client();
    block_until("the lock is free", || !client.is_held());
}

/// Ctrl-Z stops CMD and the command. The lock is kept. `fg` continues both, and CMD reads again.
pub(crate) fn stopped_from_the_terminal(place: &Place) {
    let mut screen = Screen::open(place);
    screen.type_in("$L run $K -- sh -c 'echo ru\"\"ns; read x; echo \"cmd:$x\"; exit 9'\n");
    screen.expect("runs");
    screen.type_in("\u{1a}");
    screen.expect("Stopped");
    screen.expect_prompt();
    assert!(place.client().is_held(), "a stopped job keeps its lock");
    screen.type_in("fg\n");
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing shows that the shell has given the terminal away"
    )]
    std::thread::sleep(Duration::from_millis(500));
    screen.type_in("line\n");
    screen.expect("cmd:line");
    screen.type_in("echo status:$?\n");
    screen.expect("status:9");
}

/// The keeper renews the lock while the command is stopped for longer than a lease.
pub(crate) fn stopped_for_longer_than_a_lease(place: &Place) {
    let mut screen = Screen::open(place);
    let run = "mkfifo go; $L run --lease 6s --kill-after 1s $K";
    // It starts no program meanwhile: a shell that has just called `vfork` can't be stopped.
    screen.type_in(&format!(
        "{run} -- sh -c 'echo ru\"\"ns; read x <go; exit 9'\n"
    ));
    screen.expect("runs");
    screen.type_in("\u{1a}");
    screen.expect("Stopped");
    screen.expect_prompt();
    let stopped = Stopwatch::start();
    block_until("a lease passes", || {
        stopped.elapsed() > Duration::from_secs(7)
    });
    assert!(place.client().is_held(), "the keeper renews it");
    screen.type_in("fg\n");
    let pipe = File::options()
        .read(true)
        .write(true)
        .open(place.file("go"));
    let mut pipe = pipe.expect("a pipe");
    pipe.write_all(b"\n").expect("written");
    // The shell may lose what is typed before it has the terminal.
    block_until("a prompt", || {
        screen.type_in("echo status:$?\n");
        within(Duration::from_secs(1), || {
            screen.text().contains("\nstatus:")
        })
    });
    screen.expect("status:9");
}

/// Another command of the same pipeline reads from the terminal, as a pager does.
pub(crate) fn neighbour_reads_from_the_terminal(place: &Place) {
    let mut screen = Screen::open(place);
    let pager = "sh -c 'read a; echo \"page:$a\"; read b </dev/tty; echo \"key:$b\"; cat'";
    screen.type_in(&format!(
        "$L run $K -- sh -c 'echo one; sleep 3; echo two' | {pager}\n"
    ));
    screen.expect("page:one");
    screen.type_in("q\n");
    screen.expect("key:q");
    screen.expect("\ntwo");
    screen.type_in("echo status:$?\n");
    screen.expect("status:0");
}
