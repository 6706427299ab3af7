//! A sequential pair and a hand-over with TLS, through Sentinel and in a cluster, each next to the
//! same on a single server without TLS.

use std::any::Any;
use std::time::Duration;

use leasehold::redis_rs::Options;
use leasehold::{LockClient, Mutex};
use leasehold_test_servers::{Authority, RedisCluster, SentinelServers, ServerOptions};
use tokio::task::block_in_place;

use crate::Result;
use crate::contend::{Pace, contend};
use crate::figures::hand_over::close;
use crate::figures::{Fixture, Reading, micros};
use crate::load::one_by_one;
use crate::samples::Samples;

const KEY: &str = "topology";
/// No failover.
const DOWN_AFTER: Duration = Duration::from_secs(60);

/// Servers, and two clients of them.
struct Place {
    name: &'static str,
    clients: Vec<LockClient>,
    mutexes: Vec<Mutex>,
    pairs: Samples,
    hand_overs: Samples,
    /// Ends the servers when it is dropped.
    _servers: Box<dyn Any + Send>,
}

impl Place {
    async fn connect<S: Any + Send>(
        fixture: &Fixture,
        name: &'static str,
        (servers, url): (S, String),
        options: Options,
    ) -> Result<Self> {
        let (mut clients, mut mutexes) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let backend = fixture.library.backend_with(&url, options.clone()).await?;
            let locks = LockClient::new(backend);
            mutexes.push(locks.mutex(KEY)?);
            clients.push(locks);
        }
        Ok(Self {
            name,
            clients,
            mutexes,
            pairs: Samples::default(),
            hand_overs: Samples::default(),
            _servers: Box::new(servers),
        })
    }

    async fn measure(&mut self, pairs: usize, contention: Duration) -> Result<()> {
        self.pairs.merge(one_by_one(&self.mutexes[0], pairs).await?);
        let seen = contend(self.mutexes.clone(), Pace::default(), contention).await?;
        self.hand_overs.merge(seen.hand_over);
        Ok(())
    }
}

fn tls() -> (ServerOptions, Options) {
    let authority = Authority::new();
    let server = ServerOptions::default().with_tls(authority.issue("127.0.0.1"), None);
    (
        server,
        Options::new().root_certificates(authority.certificate()),
    )
}

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let plain = Options::new;
    let (server, trusting) = tls();
    let (tls, sentinels, cluster) = block_in_place(|| {
        let sentinels = SentinelServers::start(DOWN_AFTER);
        (server.start(), sentinels, RedisCluster::start())
    });
    let (tls_url, sentinel_url, cluster_url) = (tls.tls_url(), sentinels.url(), cluster.url());
    let mut places = [
        Place::connect(fixture, "single", ((), fixture.url()), plain()).await?,
        Place::connect(fixture, "tls", (tls, tls_url), trusting).await?,
        Place::connect(fixture, "sentinel", (sentinels, sentinel_url), plain()).await?,
        Place::connect(fixture, "cluster", (cluster, cluster_url), plain()).await?,
    ];
    for place in &places {
        one_by_one(&place.mutexes[0], 20).await?;
    }
    let contention = Duration::from_millis(fixture.effort.of(50, 100));
    // The blocks are short, so that noise on the machine affects all.
    for _ in 0..fixture.effort.of(1, 16) {
        for place in &mut places {
            place
                .measure(fixture.effort.of(20, 250), contention)
                .await?;
        }
    }
    let single = &places[0];
    let over = |what: &str, place: &Place, of: fn(&Place) -> &Samples, percent| {
        let value = |place| micros(of(place).percentile(percent));
        let id = format!("topology.{}.{what}.p{percent}", place.name);
        Reading::new(id, value(place), "µs").over(value(single))
    };
    let mut readings = Vec::new();
    for place in &places[1..] {
        for percent in [50, 99] {
            readings.push(over("pair", place, |it| &it.pairs, percent));
            readings.push(over("hand_over", place, |it| &it.hand_overs, percent));
        }
    }
    for place in places {
        close(place.clients).await?;
    }
    Ok(readings)
}
