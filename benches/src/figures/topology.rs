//! A sequential pair and a hand-over over TLS, through Sentinel and in a cluster, each next to the
//! same on a single server without TLS.

use std::time::Duration;

use leasehold::redis_rs::Options;
use leasehold::{LockClient, Mutex};
use leasehold_test_servers::{Authority, RedisCluster, SentinelServers, ServerOptions};
use tokio::task::block_in_place;

use crate::Result;
use crate::contend::{Pace, contend};
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Reading};
use crate::library::one_each;
use crate::load::one_by_one;
use crate::samples::Samples;

/// Long enough that no sentinel starts a failover.
const DOWN_AFTER: Duration = Duration::from_secs(60);

/// Two clients of one kind of deployment, and what they measured.
struct Topology {
    name: &'static str,
    clients: Vec<LockClient>,
    mutexes: Vec<Mutex>,
    pairs: Samples,
    hand_overs: Samples,
}

impl Topology {
    async fn connect(
        fixture: &Fixture,
        name: &'static str,
        url: &str,
        options: Options,
    ) -> Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..2 {
            let backend = fixture.library.backend_with(url, options.clone()).await?;
            clients.push(LockClient::new(backend));
        }
        let mutexes = one_each(&clients, "topology")?;
        // The first calls connect and load the scripts.
        for mutex in &mutexes {
            one_by_one(mutex, 20).await?;
        }
        Ok(Self {
            name,
            clients,
            mutexes,
            pairs: Samples::default(),
            hand_overs: Samples::default(),
        })
    }

    async fn measure(&mut self, pairs: usize, contention: Duration) -> Result<()> {
        self.pairs.merge(one_by_one(&self.mutexes[0], pairs).await?);
        let seen = contend(self.mutexes.clone(), Pace::default(), contention).await?;
        self.hand_overs.merge(seen.hand_over);
        Ok(())
    }

    fn readings_over(&self, single: &Self) -> Vec<Reading> {
        let both = |what, own, floor| {
            let id = format!("topology.{}.{what}", self.name);
            [50, 99].map(|percent| Reading::percentile(&id, percent, own, floor))
        };
        let pairs = both("pair", &self.pairs, &single.pairs);
        let hand_overs = both("hand_over", &self.hand_overs, &single.hand_overs);
        [pairs, hand_overs].concat()
    }
}

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let authority = Authority::new();
    let with_tls = ServerOptions::default().with_tls(authority.issue("127.0.0.1"), None);
    let (tls, sentinels, cluster) = block_in_place(|| {
        let sentinels = SentinelServers::start(DOWN_AFTER);
        (with_tls.start(), sentinels, RedisCluster::start())
    });
    let plain = Options::new;
    let trusting = plain().root_certificates(authority.certificate());
    let mut single = Topology::connect(fixture, "single", &fixture.url(), plain()).await?;
    let mut others = [
        Topology::connect(fixture, "tls", &tls.tls_url(), trusting).await?,
        Topology::connect(fixture, "sentinel", &sentinels.url(), plain()).await?,
        Topology::connect(fixture, "cluster", &cluster.url(), plain()).await?,
    ];
    let pairs = fixture.effort.of(20, 250);
    let contention = Duration::from_millis(fixture.effort.of(50, 100));
    // They alternate in short blocks, so that another program on the machine disturbs all of them.
    for _ in 0..fixture.effort.of(1, 16) {
        single.measure(pairs, contention).await?;
        for other in &mut others {
            other.measure(pairs, contention).await?;
        }
    }
    let readings = others.iter().flat_map(|it| it.readings_over(&single));
    let readings = readings.collect();
    for topology in others.into_iter().chain([single]) {
        close(topology.clients).await?;
    }
    Ok(readings)
}
