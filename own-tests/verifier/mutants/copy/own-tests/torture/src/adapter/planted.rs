//! What takes a mend out of the code of this process.

use leasehold_redis_common::connection::mutants;

use crate::Failure;
use crate::adapter::leasehold::Broken;

/// Takes the mend out whose lack is `broken`, if it is a mend.
pub(super) fn plant(broken: Broken) -> Result<(), Failure> {
    match broken {
        Broken::TakesGrantsBack => take_grants_back()?,
        Broken::SubscribesAtTheFormerPrimary => {
            take_grants_back()?;
            mutants::plant();
        }
        Broken::DecidesTwice => leasehold_quorum::mutants::plant(),
        _ => {}
    }
    Ok(())
}

fn take_grants_back() -> Result<(), Failure> {
    let planted = leasehold_api::mutants::plant("lua-grant-is-published-and-taken-back");
    planted.then_some(()).ok_or_else(|| "no such mutant".into())
}
