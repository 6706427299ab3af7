//! The constructor that the shared tests of Redis backends use.

use std::sync::Arc;

use leasehold_api::LockBackend;
use leasehold_fred::{ConnectError, FredBackend, Options};

pub(crate) async fn connect_with(
    url: &str,
    options: Options,
) -> Result<Arc<dyn LockBackend>, ConnectError> {
    Ok(Arc::new(FredBackend::connect_with(url, options).await?))
}
