//! The starter: it waits for permission, and becomes CMD.
//!
//! The keeper must know the process group of CMD before CMD runs. Otherwise nobody would kill CMD if the
//! command was killed at that moment. So the command starts this program in a new process group, tells
//! the keeper, and only then sends the permission: the standard input of CMD. Until then, the standard
//! input is a socket, which closes when the command ends.

use std::ffi::OsString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::ending::{LOST, NOT_EXECUTABLE, NOT_FOUND};

/// The first argument of this program as a starter.
pub(crate) const NAME: &str = "__start";

/// Waits for the permission and becomes CMD, which the other arguments name.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ! {
    let Some(input) = permission() else {
        // The command has ended.
        std::process::exit(i32::from(LOST));
    };
    if let Err(error) = rustix::stdio::dup2_stdin(&input) {
        eprintln!("leasehold: standard input: {error}");
        std::process::exit(i32::from(LOST));
    }
    drop(input);
    let program = arguments.next().unwrap_or_default();
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("leasehold: {}: {error}", program.display());
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    std::process::exit(i32::from(status));
}

/// Sends the permission: a byte, and the standard input of CMD.
pub(crate) fn permit(starter: &UnixStream, input: impl AsFd) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let inputs = [input.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&inputs));
    let byte = [std::io::IoSlice::new(b"!")];
    sendmsg(starter, &byte, &mut control, SendFlags::empty())?;
    Ok(())
}

/// Waits for the permission. Returns `None` if the command ends before it gives it.
fn permission() -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        let mut buffer = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(rustix::stdio::stdin(), &mut buffer, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.ok()?,
        }
    };
    if received.bytes == 0 {
        return None;
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut inputs) => inputs.next(),
        _ => None,
    })
}
