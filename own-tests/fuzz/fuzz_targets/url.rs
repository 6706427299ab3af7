//! A URL of Redis is read or refused. No password is shown.
#![no_main]

use leasehold_redis_common::connection::ServerUrl;
use libfuzzer_sys::fuzz_target;

const PASSWORD: &str = "hunter2hunter2";

fuzz_target!(|input: (bool, &str)| {
    let (has_tls, text) = input;
    // The text may contain the password only where a URL has it.
    let url = match text.split_once("://") {
        Some((scheme, rest)) if !text.contains("hunter2") => {
            format!("{scheme}://user:{PASSWORD}@{rest}")
        }
        _ => return,
    };
    let shown = match ServerUrl::parse(&url, has_tls) {
        Ok(parsed) => format!("{parsed:?}"),
        Err(error) => format!("{error} {error:?}"),
    };
    assert!(!shown.contains(PASSWORD), "{shown}");
});
