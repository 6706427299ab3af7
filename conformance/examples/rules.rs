//! Prints the table of rules and their cases, which is checked in as `RULES.md`.

fn main() {
    print!("{}", leasehold_conformance::rules_table());
}
