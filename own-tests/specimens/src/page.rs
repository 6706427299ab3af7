//! The page of the specimens, which is checked in as `docs/specimens.md`.

use std::fmt::Write;

use crate::list::SPECIMENS;

const INTRODUCTION: &str = "\
# Hand-written locks, and the cases that reject them

Many programs contain a lock that somebody wrote after a tutorial. Each row of this page is such a lock,
as a small backend on a real Redis server. The [conformance suite](conformance.md) runs on it and must
reject it, by the case that shows its fault. [migration.md](migration.md) shows what to write instead.

Before you trust your own lock, look for its row. The tutorials' leases in seconds are in milliseconds
here, because the cases are short. The backends around the locks add stamps and watermarks (rules 1 and 12
of [semantics.md](semantics.md)), which no tutorial has. So a lock is rejected only for a fault that it
has.

";

const END: &str = "
`compare_and_delete` is the correct building block: a unique identifier, one command that sets the value
with its lease, and scripts that compare before they change. It passes all cases of a minimal backend.
Without watermarks even this lock fails if the network, or a client library that retries, delivers an
acquire twice.

The code is in `own-tests/specimens`. The test `cargo test -p leasehold-specimens` runs these cases. It
fails if one of them passes, or fails for another reason than the one in the table. For each lock, it also
runs cases that must pass.

To regenerate this page, run
`cargo run -p leasehold-specimens --example specimens > docs/specimens.md`. A test checks that it is up to
date.
";

/// Renders the page, in Markdown.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    page.push_str("| lock | how | case that rejects it | what the lock did |\n|---|---|---|---|\n");
    for specimen in SPECIMENS {
        if specimen.faults.is_empty() {
            row(&mut page, [specimen.name, specimen.how, "", "passes"]);
        }
        let mut how = (specimen.name, specimen.how);
        for fault in specimen.faults {
            row(&mut page, [how.0, how.1, fault.case, fault.did]);
            how = ("", "");
        }
    }
    page.push_str(END);
    page
}

fn row(page: &mut String, [name, how, case, did]: [&str; 4]) {
    let code = |text: &str| match text {
        "" => String::new(),
        text => format!("`{text}`"),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(page, "| {} | {how} | {} | {did} |", code(name), code(case));
}
