//! The starter: it waits for permission, and becomes CMD.
//!
//! The keeper must know the process group of CMD before CMD runs. Otherwise nobody would kill CMD if the
//! command was killed or stopped at that moment. So the command starts this program in a new process group,
//! tells the keeper, and sends the permission when the keeper has answered: the standard input of CMD, and until
//! when CMD may start. Until then, the standard input is a socket, which closes when the command ends.
//!
//! The starter looks at the clock last. The command may be stopped after its own look at it.

use std::ffi::OsString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::clock::now;
use crate::ending::{CANNOT_START, LOST, NOT_EXECUTABLE, NOT_FOUND};
use crate::output::say;

/// The first argument of this program as a starter.
pub(crate) const NAME: &str = "__start";

/// Waits for the permission and becomes CMD, which the other arguments name.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ! {
    let until = permission().unwrap_or_else(|error| {
        say(&format!("standard input: {error}"));
        std::process::exit(i32::from(CANNOT_START));
    });
    let Some(until) = until else {
        // The command has ended, or says why CMD doesn't run.
        std::process::exit(i32::from(LOST));
    };
    let program = arguments.next().unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(arguments);
    if now() >= until {
        say("the lock was about to be lost, before CMD started");
        std::process::exit(i32::from(LOST));
    }
    let error = command.exec();
    // It has made SIGPIPE deadly, and perhaps nobody reads this.
    let _ = SigSet::from(Signal::SIGPIPE).thread_block();
    say(&format!("{}: {error}", program.display()));
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    std::process::exit(i32::from(status));
}

/// Sends the permission to start CMD before `until`.
pub(crate) fn permit(
    starter: &UnixStream,
    input: impl AsFd,
    until: Duration,
) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let inputs = [input.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&inputs));
    let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
    let nanos = nanos.to_le_bytes();
    let bytes = [std::io::IoSlice::new(&nanos)];
    sendmsg(starter, &bytes, &mut control, SendFlags::empty())?;
    Ok(())
}

/// Waits for the permission, and takes the standard input of CMD from it. Returns until when CMD may start, or `None` if
/// the command closes the socket instead.
fn permission() -> std::io::Result<Option<Duration>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut nanos = [0; size_of::<u64>()];
    let received = loop {
        let mut buffer = [IoSliceMut::new(&mut nanos)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(rustix::stdio::stdin(), &mut buffer, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let input = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut inputs) => inputs.next(),
        _ => None,
    });
    // The kernel leaves it out if this process may not open another file.
    let input = input.ok_or(rustix::io::Errno::MFILE)?;
    rustix::stdio::dup2_stdin(input)?;
    Ok(Some(Duration::from_nanos(u64::from_le_bytes(nanos))))
}
