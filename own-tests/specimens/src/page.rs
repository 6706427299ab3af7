//! The page of the specimens, which is checked in as `docs/specimens.md`.

use std::fmt::Write;

use crate::list::SPECIMENS;

const INTRODUCTION: &str = "\
# Hand-written locks, and the cases that reject them

Before you trust a lock that you wrote after a tutorial, look for its row. Each is a small backend on a real Redis server, which the
[conformance suite](conformance.md) must reject, by the case that shows its fault. [migration.md](migration.md)
shows what to write instead. The backends add stamps and watermarks (rules 1 and 12 of [semantics.md](semantics.md)), so a lock is
rejected only for a fault that it has.

";

const END: &str = "
`compare_and_delete` is the correct building block: a unique identifier, one command that sets the value
with its lease, and scripts that compare before they change. Without watermarks even this lock fails if the network, or a client
library that retries, delivers an acquire twice.

`cargo test -p leasehold-specimens` runs these cases, and others that must pass.
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
