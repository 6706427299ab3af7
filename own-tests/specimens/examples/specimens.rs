//! Prints the page of the specimens, which is checked in as `docs/specimens.md`.

fn main() {
    print!("{}", leasehold_specimens::page());
}
