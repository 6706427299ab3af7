//! The command `leasehold`: runs another command while it holds a distributed lock.
//!
//! Three processes of this program take part in `leasehold run KEY -- CMD`:
//!
//! - the *command*, which the user starts ([`run`]). It starts the other two, passes signals on to CMD,
//!   and ends as CMD does. It is synchronous and does nothing else;
//! - the *keeper* ([`keeper`]). It acquires the lock, renews it, and releases it;
//! - the *starter* ([`starter`]), which becomes CMD by `exec` once the keeper knows its process group.
//!
//! The command and the keeper both know when the lease ends, and both can kill the process group of CMD. So
//! CMD is dead before the lease ends, even if one of the two is stopped or killed.

#![expect(
    clippy::disallowed_methods,
    reason = "the command itself waits, not a test"
)]

#[cfg(not(unix))]
compile_error!("the command `leasehold` needs process groups and signals: Unix");

mod arguments;
mod clock;
mod connection;
mod doctor;
mod ending;
mod group;
mod keeper;
mod leader;
mod operate;
mod output;
mod protocol;
mod run;
mod starter;
mod texts;
mod top;

use crate::arguments::{Once, Subcommand};
use crate::ending::Ending;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|it| it.to_str()) {
        Some(keeper::NAME) => keeper::main(),
        Some(starter::NAME) => starter::main(arguments),
        _ => main_of_user().end(),
    }
}

fn main_of_user() -> Ending {
    match arguments::parse() {
        Ok(Subcommand::Run(options)) => run::run(&options),
        Ok(Subcommand::Ls(options)) => operate::ls(&options),
        Ok(Subcommand::Show(options)) => operate::show(&options),
        Ok(Subcommand::Leader(options)) => leader::leader(&options),
        Ok(Subcommand::Revoke(options)) => operate::revoke(&options),
        Ok(Subcommand::Once(Once::Show(options))) => operate::show_job(&options),
        Ok(Subcommand::Once(Once::Reset(options))) => operate::reset_job(&options),
        Ok(Subcommand::Doctor(options)) => doctor::doctor(&options),
        Ok(Subcommand::Schema(options)) => operate::schema(&options),
        Ok(Subcommand::Top(options)) => top::top(&options),
        Ok(Subcommand::Completions(options)) => texts::completions(&options),
        Ok(Subcommand::ManPage(options)) => texts::man_page(&options),
        Err(ending) => ending,
    }
}
