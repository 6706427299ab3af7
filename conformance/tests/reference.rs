//! Runs the suite on the state machine. A case that the specification fails is a bug in the case.

mod support;

fn main() -> std::process::ExitCode {
    leasehold_conformance::run(support::Reference::plain(), &[])
}
