//! Commands as text, for a failure.

use leasehold_api::machine::Command;
use leasehold_api::{Label, Operation, ServerTime};

/// Formats a command for a failure. Times are relative to the last reply.
pub(super) fn describe(command: &Command, now: ServerTime) -> String {
    let from_now = |at: ServerTime| {
        let micros = |time: ServerTime| i128::from(time.as_micros());
        format!("{:+} µs", micros(at) - micros(now))
    };
    match command {
        Command::Acquire(r) => {
            let wait = r.wait.map_or("no wait".to_owned(), |wait| {
                let until = wait.wait_until.map(from_now);
                format!("wait (listening: {}, until: {until:?})", wait.listening)
            });
            format!(
                "acquire {} {:?} of {:?}, lease {:?}, {wait}, before {}, floor {:?}, {:?}",
                label(r.operation),
                r.mode,
                r.spec,
                r.lease,
                from_now(r.deliver_before),
                r.floor,
                r.limits
            )
        }
        Command::Poll(r) => format!("poll {}, listening: {}", label(r.operation), r.listening),
        Command::Renew(r) => format!("renew {} for {:?}", label(r.operation), r.lease),
        Command::Release(r) => format!("release {}", label(r.operation)),
        Command::Convert(r) => {
            format!(
                "convert {} of {:?} to {:?}",
                label(r.operation),
                r.expected,
                r.to
            )
        }
        Command::Inspect => "inspect".to_owned(),
        Command::Note(r) => {
            format!(
                "note {} version {}, kept for {:?}",
                label(r.operation),
                r.version,
                r.keep
            )
        }
        Command::ForceRelease(r) => format!("force release of {:?}, {:?}", r.tokens, r.how),
    }
}

/// A label that names one operation.
pub(super) fn label(operation: Operation) -> Label {
    let session = operation.session.as_bytes()[0];
    let text = format!(
        "{session:02x}#{} of {}",
        operation.sequence,
        operation.owner.as_u64()
    );
    Label::new(text).expect("short enough")
}
