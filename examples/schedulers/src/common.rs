//! What the examples share.

use std::env::args;

use leasehold::Job;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) struct Arguments {
    pub(crate) url: String,
    /// Seconds, minutes, hours, days, months, days of the week.
    pub(crate) schedule: String,
}

impl Arguments {
    pub(crate) fn from_command_line() -> Self {
        let url = args().nth(1);
        let schedule = args().nth(2);
        Self {
            url: url.unwrap_or_else(|| "redis://127.0.0.1:6379".into()),
            schedule: schedule.unwrap_or_else(|| "0 10 3 * * *".into()),
        }
    }
}

pub(crate) async fn write_report(job: &Job) -> std::io::Result<()> {
    println!(
        "writes the report of {}, attempt {}",
        job.fire_time(),
        job.attempt()
    );
    Ok(())
}
