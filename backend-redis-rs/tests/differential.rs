//! Random command sequences through the `redis` crate, compared with the state machine.

mod client;

#[path = "../../redis-common/tests/shared/differential.rs"]
mod differential;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    differential::run(|server| server.unix_url());
}
