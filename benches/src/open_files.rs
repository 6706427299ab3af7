//! The limit of open files. A thousand clients with connections of their own need thousands.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Result;

/// The connections of a client of leasehold: for calls, for notifications and for renewals.
const CONNECTIONS: usize = 3;
/// Locks beside it, each with a connection of its own.
const BESIDE: usize = 2;
/// Everything else in this program, and what the server reserves.
const OTHERS: usize = 200;

/// Raises this program's limit as far as it may. Servers that it starts inherit the limit, and
/// accept connections accordingly.
pub fn raise_limit() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current, maximum })?)
}

/// Checks that this many clients, and the locks beside them, can connect.
pub fn suffice_for(clients: usize) -> Result<()> {
    let needed = OTHERS + clients * (CONNECTIONS + BESIDE);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed as u64 => Err(format!(
            "{clients} clients need {needed} open files, and the limit is {limit}: raise it with \
             `ulimit -n`"
        )
        .into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_checked_before_anything_connects() {
        raise_limit().expect("the hard limit is allowed");
        suffice_for(2).expect("a few clients always fit");
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            let clients = usize::try_from(limit).expect("a count");
            let error = suffice_for(clients).expect_err("more than the limit");
            assert!(error.to_string().ends_with("raise it with `ulimit -n`"));
        }
    }
}
