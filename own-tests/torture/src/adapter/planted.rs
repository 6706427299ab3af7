//! What takes a mend out of the code of this process. The copy that `.ci/plant` makes has another file in
//! this place.

use crate::Failure;
use crate::adapter::leasehold::Broken;

/// Takes the mend out whose lack is `broken`, if it is a mend.
pub(super) fn plant(broken: Broken) -> Result<(), Failure> {
    match broken {
        Broken::TakesGrantsBack | Broken::SubscribesAtTheFormerPrimary | Broken::DecidesTwice => {
            Err("build with `--manifest-path \"$(.ci/plant)/Cargo.toml\"`".into())
        }
        _ => Ok(()),
    }
}
