//! The suite on the state machine itself: what the specification does not pass is wrong in the
//! suite.

mod support;

fn main() -> std::process::ExitCode {
    leasehold_conformance::run(support::Reference::plain(), &[])
}
