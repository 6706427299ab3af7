//! Eight clients contend for one mutex, hold it for 5 ms and then pause for 20 ms, as in real work.
//!
//! The floor of the rate alternates holds and bare messages. It uses the measured hold, because a
//! timer of 5 ms fires late.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::Result;
use crate::contend::{Pace, contend};
use crate::counting::Counts;
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Goal, Reading, micros, millis};
use crate::library::one_each;
use crate::server_stats::ServerStats;

pub(crate) const CLIENTS: usize = 8;
pub(crate) const PACE: Pace = Pace {
    hold: Duration::from_millis(5),
    pause: Duration::from_millis(20),
};
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let (url, library) = (fixture.url(), fixture.library);
    let messages = fixture.effort.of(50, 3_000);
    let floor = library.message_floor(&url, messages).await?;
    let mut server = ServerStats::connect(&url).await?;
    let counts = Arc::new(Counts::default());
    let clients = library.connect_counted(&url, CLIENTS, &counts).await?;
    let mutexes = one_each(&clients, "steady")?;
    // A client subscribes and polls when it waits for the first time, and it connects for renewals
    // at its first hold. Neither is part of the cost of an acquisition.
    contend(mutexes.clone(), PACE, WARM_UP).await?;
    let (renewed, before) = (counts.renewals.load(Relaxed), server.commands().await?);
    let time = Duration::from_millis(fixture.effort.of(200, 4_000));
    let seen = contend(mutexes, PACE, time).await?;
    let renewals = counts.renewals.load(Relaxed) - renewed;
    let scripts = server.commands().await?.since(&before).scripts();
    close(clients).await?;
    let each = |calls: u64| calls as f64 / seen.all as f64;
    let possible = 1.0 / (seen.hold.mean() + floor.percentile(50)).as_secs_f64();
    let rate = Reading::new("steady.rate", seen.per_second(), "acquisitions/s");
    let wait = Reading::new("steady.wait_p99", millis(seen.wait.percentile(99)), "ms");
    let calls = |id, calls| Reading::new(id, each(calls), "calls per acquisition");
    let commands = calls("steady.commands", scripts.calls.saturating_sub(renewals));
    Ok(vec![
        rate.over(possible).goal(Goal::RatioAtLeast(0.95)),
        wait.goal(Goal::AtMost(60.0)),
        commands.goal(Goal::AtMost(2.0)),
        calls("steady.renewals", renewals),
        Reading::new("steady.hold", micros(seen.hold.mean()), "µs"),
    ])
}
