//! A loop over a schedule of the crate `cron`, which tells each fire time.
//!
//! Start it on several machines. Arguments: the URL of the lock service, and a schedule.

mod common;

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use chrono::Utc;
use common::{Arguments, Result, write_report};
use cron::Schedule;

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { url, schedule } = Arguments::from_command_line();
    let locks = leasehold::connect(&url).await?;
    let report = locks
        .once("report-by-cron")?
        .max_hold(Duration::from_secs(60 * 60));
    let window = Duration::from_secs(6 * 60 * 60);
    // One that no machine has run, because all were being restarted, may still be due.
    for fire in Schedule::from_str(&schedule)?.after(&(Utc::now() - window)) {
        let occurrence = report.at(SystemTime::from(fire)).start_before(window);
        // Until the fire time, `run` sleeps.
        match occurrence.run(async |job| write_report(&job).await).await {
            Ok(outcome) => println!("{fire}: {outcome:?}"),
            // The next one is tried all the same.
            Err(error) => eprintln!("{fire}: {error}"),
        }
    }
    Ok(())
}
