//! One SeaweedFS server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold_test_servers::{RedisServer, SeaweedFs};
use serde_json::Value;

use super::{Injection, LARGEST_KEY, Servers, sleep, within};
use crate::link::{Upstream, fixed};

const FOLDER: &str = "torture";

const FAULTS: &[Injection<S3>] = &[
    (
        within("kill server, restart with its data"),
        |it, random| {
            it.server.stop();
            sleep(random, it.lease, 0, 200);
            it.server.restart();
        },
    ),
    (within("stop server").delays(), |it, random| {
        it.server.pause();
        sleep(random, it.lease, 20, 300);
        it.server.resume();
        it.server.wait();
    }),
];

pub(crate) struct S3 {
    server: SeaweedFs,
    lease: Duration,
}

impl S3 {
    pub(crate) fn start(lease: Duration) -> Self {
        let server = SeaweedFs::start();
        Self { server, lease }
    }
}

impl Servers for S3 {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        self.server.version()
    }

    fn linked(&self) -> Vec<Upstream> {
        let address = (Ipv4Addr::LOCALHOST, self.server.port()).into();
        vec![fixed(address)]
    }

    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        let url = |link: &SocketAddr| self.server.url_at(*link, FOLDER);
        links.iter().map(url).collect()
    }

    fn left(&self) -> Vec<String> {
        let listing = self.server.get(&format!("{FOLDER}/"));
        let listing: Value = serde_json::from_str(&listing.unwrap_or_default()).unwrap_or_default();
        let Some(objects) = listing["Entries"].as_array() else {
            return vec!["no answer".into()];
        };
        let is_large = |object: &&Value| object["FileSize"].as_u64() > Some(LARGEST_KEY as u64);
        let large = objects.iter().filter(is_large);
        large
            .map(|it| format!("a large object {}", it["FullPath"]))
            .collect()
    }
}
