//! Tests with other processes on a real server, through both client libraries.

/// Makes a test of each function, once for each client library: `NAME::through_redis_rs` and
/// `NAME::through_fred`.
macro_rules! through_both_libraries {
    ($($name:ident),+) => {
        $(mod $name {
            use leasehold_processes::Library;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn through_redis_rs() {
                super::$name(Library::RedisRs).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn through_fred() {
                super::$name(Library::Fred).await;
            }
        })+
    };
}

#[cfg(target_os = "linux")]
mod addresses;
mod away;
