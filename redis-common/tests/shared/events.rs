//! The events of this process. A process has one global subscriber, so all tests share it, and each
//! picks its own lines.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts to record events.
pub(crate) fn record() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Recorder).expect("the only subscriber");
    });
}

/// The events with this level and name, and this text in a field, as `LEVEL NAME FIELD=VALUE …`.
pub(crate) fn lines(name: &str, text: &str) -> Vec<String> {
    let lines = LINES.lock().expect("no panic");
    let lines = lines.iter().filter(|line| line.starts_with(name));
    lines.filter(|line| line.contains(text)).cloned().collect()
}

struct Recorder;

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "message" {
            write!(self.0, " {field}={value:?}").expect("writing to a string never fails");
        }
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "leasehold"
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut fields = Fields(format!("{} {}", metadata.level(), metadata.name()));
        event.record(&mut fields);
        LINES.lock().expect("no panic").push(fields.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
