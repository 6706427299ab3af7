//! `leasehold top`: a live table of the keys in use.
//!
//! A round lists the keys and asks for the state of each one. It has a limit of keys and of time, and the table says that it
//! is partial if one of them was reached.

mod round;
mod table;

use std::io::{IsTerminal, Read, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::LockClient;
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::raw::{IntoRawMode, RawTerminal};
use ratatui::termion::screen::{AlternateScreen, IntoAlternateScreen};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::arguments::Top;
use crate::ending::{self, Ending, USAGE};
use crate::operate::{Failed, block_on, connect};
use crate::output::say;
use round::Round;
use table::View;

/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(2);
/// How often to look at signals and at the size of the terminal.
const TICK: Duration = Duration::from_millis(200);
/// Ctrl-C and Ctrl-D arrive as bytes.
const QUIT: [u8; 4] = [b'q', b'Q', 3, 4];

type Screen = Terminal<TermionBackend<AlternateScreen<RawTerminal<Stdout>>>>;

pub(crate) fn top(options: &Top) -> Ending {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        say("`top` needs a terminal; `leasehold ls --long` prints the same keys");
        return Ending::Status(USAGE);
    }
    let signal = Arc::new(AtomicUsize::new(0));
    let ended = block_on(async {
        let locks = connect(&options.service).await?;
        catch_signals(&signal);
        show(&locks, &options.prefix, &signal).await?;
        Ok(0)
    });
    match i32::try_from(signal.load(Ordering::Relaxed)) {
        Ok(signal) if signal > 0 => Ending::Signal(signal),
        _ => ended,
    }
}

/// Signals end the table, because the terminal must be restored first.
fn catch_signals(signal: &Arc<AtomicUsize>) {
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let value = usize::try_from(number).unwrap_or_default();
        let _ = signal_hook::flag::register_usize(number, Arc::clone(signal), value);
    }
}

/// Shows round after round, until the user or a signal ends it.
async fn show(locks: &LockClient, prefix: &str, signal: &AtomicUsize) -> Result<(), Failed> {
    let mut screen = open()?;
    let mut keys = keys();
    let mut view = View::new(prefix);
    loop {
        let mut round = Box::pin(Round::run(locks, prefix));
        let mut next = None;
        loop {
            screen.draw(|frame| view.draw(frame))?;
            let tick = Instant::now() + TICK;
            tokio::select! {
                done = &mut round, if next.is_none() => {
                    match done {
                        Ok(round) => view.show(round),
                        Err(error) if error.is_transient() => view.say(ending::chain(&error)),
                        Err(error) => return Err(error.into()),
                    }
                    next = Some(Instant::now() + PAUSE);
                }
                key = keys.recv() => {
                    if key.is_none_or(|key| QUIT.contains(&key)) {
                        return Ok(());
                    }
                }
                () = sleep_until(tick) => {}
            }
            if signal.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
            if next.is_some_and(|next| next <= Instant::now()) {
                break;
            }
        }
    }
}

/// Takes the terminal. Dropping the screen gives it back as it was.
fn open() -> std::io::Result<Screen> {
    let screen = std::io::stdout().into_raw_mode()?.into_alternate_screen()?;
    let mut screen = Terminal::new(TermionBackend::new(screen))?;
    screen.hide_cursor()?;
    Ok(screen)
}

/// The keys that the user types. The channel closes with standard input.
fn keys() -> UnboundedReceiver<u8> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        let typed = std::io::stdin().lock().bytes();
        for key in typed.map_while(Result::ok) {
            if sender.send(key).is_err() {
                return;
            }
        }
    });
    receiver
}
