//! Tests of waiting on a real server, with many processes and many clients, through both client
//! libraries.

/// Makes a test of each function, once for each client library: `NAME::through_redis_rs` and
/// `NAME::through_fred`.
macro_rules! through_both_libraries {
    ($($name:ident),+) => {
        $(mod $name {
            use leasehold_processes::Library;

            #[test]
            fn through_redis_rs() {
                crate::support::run(super::$name(Library::RedisRs));
            }

            #[test]
            fn through_fred() {
                crate::support::run(super::$name(Library::Fred));
            }
        })+
    };
}

#[cfg(target_os = "linux")]
mod addresses;
mod away;
mod drops;
#[cfg(target_os = "linux")]
mod stepped_clock;
mod support;
