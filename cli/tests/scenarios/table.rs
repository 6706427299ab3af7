//! `leasehold top`, in a terminal.

use leasehold_test_servers::within;
use rustix::process::Signal;

use crate::scenarios::support::{LONG, Place, Started, kill};
use crate::scenarios::terminal::Screen;

const ROWS: u16 = 24;
const COLUMNS: u16 = 160;

/// A terminal that shows what programs draw.
pub(crate) struct Drawn(Screen);

impl Drawn {
    /// Opens a terminal, and has its shell run this.
    pub(crate) fn run(place: &Place, line: &str) -> Self {
        let mut screen = Screen::open(place);
        screen.resize(ROWS, COLUMNS);
        screen.type_in(&format!("{line}\n"));
        Self(screen)
    }

    fn lines(&self) -> Vec<String> {
        let mut terminal = vt100::Parser::new(ROWS, COLUMNS, 0);
        terminal.process(self.0.text().as_bytes());
        let lines = terminal.screen().contents();
        lines.lines().map(str::to_owned).collect()
    }

    /// Waits until the first two lines are like that.
    pub(crate) fn expect_head(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let head = || self.lines().into_iter().take(2).collect::<Vec<_>>();
        let seen = within(LONG, || is_so(&head().join("\n")));
        assert!(seen, "no {what:?} in {:?}", self.lines());
    }

    pub(crate) fn expect(&self, text: &str) {
        self.expect_head(text, |head| head.contains(text));
    }
}

/// A queue, a leader, a job and a plain lock, in the order of their waiters. `q` gives the terminal back.
pub(crate) fn shows_what_is_in_use(place: &Place) {
    let key = |name: &str| Place::new(&place.url, &format!("{}/{name}", place.key));
    let (queue, leader, job, lone) = (key("queue"), key("leader"), key("job"), key("lone"));
    let _held = queue.start(&[], "sleep 300");
    let waiting = [(); 3].map(|()| Started::new(queue.run(&[], "true")));
    let _leads = leader.start(&["--info", "10.0.0.7:80"], "sleep 300");
    let _follows = Started::new(leader.run(&["--info", "10.0.0.8:80"], "true"));
    assert_eq!(job.status(&["--not-within", "1h"], "true"), 0);
    let _alone = lone.start(&["-n", "2"], "sleep 300");

    let mut drawn = Drawn::run(place, &format!("$L top '{}/'", place.key));
    drawn.expect("4 keys");
    drawn.expect("3 held, 4 waiters");
    let lines = drawn.lines();
    assert!(!lines.join("\n").contains("partial"), "{lines:#?}");
    let rows: Vec<Vec<&str>> = lines[3..7]
        .iter()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for (row, (waiters, name, kind)) in rows.iter().zip([
        ("3", "queue", "mutex"),
        ("1", "leader", "election"),
        ("0", "lone", "semaphore"),
        ("0", "job", "job"),
    ]) {
        let key = format!("{}/{name}", place.key);
        assert_eq!(row[..3], [waiters, &key, kind], "{lines:#?}");
    }
    assert_eq!(rows[1][4], "10.0.0.7:80", "{lines:#?}");

    // It is live.
    drop(waiting);
    drawn.expect("3 held, 1 waiters");
    drawn.0.type_in("q");
    drawn.0.expect_prompt();
    drawn.0.type_in("echo status:$?\n");
    drawn.0.expect("status:0");
}

/// A signal ends it, or `q`, and the terminal is as it was.
pub(crate) fn gives_the_terminal_back(place: &Place) {
    let script = "stty -a > before\n\
                  sh -c 'echo $$ > id; exec \"$L\" top nothing'\n\
                  echo status:$?\n\
                  stty -a > after\n\
                  \"$L\" top nothing\n\
                  stty -a > quit\n\
                  echo the end\n";
    std::fs::write(place.file("script"), script).expect("written");
    // This shell leaves the terminal as it finds it.
    let mut drawn = Drawn::run(place, "sh script");
    drawn.expect("0 held, 0 waiters");
    let read = |file: &str| std::fs::read_to_string(place.file(file)).expect("written");
    kill(read("id").trim().parse().expect("a number"), Signal::TERM);
    drawn.0.expect("status:143");
    drawn.expect("0 held, 0 waiters");
    drawn.0.type_in("q");
    drawn.0.expect("the end");
    drawn.0.expect_prompt();
    assert_eq!(read("before"), read("after"));
    assert_eq!(read("before"), read("quit"));

    let mut command = place.leasehold();
    command.arg("top").stdout(std::process::Stdio::null());
    let text = Started::new(command).expect_status(64);
    assert!(text.contains("needs a terminal"), "{text}");
}
