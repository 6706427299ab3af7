//! `leasehold leader`: who leads an election, and who follows.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::{Election, Label, Leader as Elected};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::arguments::Leader;
use crate::ending::{self, Ending};
use crate::operate::{Failed, block_on, connect, printable};
use crate::output::say;

/// Nobody leads.
const NOBODY: u8 = 1;
/// How often to ask whether the service is there. The stream of leaders doesn't say it.
const ASK_AGAIN: Duration = Duration::from_secs(5);

pub(crate) fn leader(options: &Leader) -> Ending {
    block_on(async {
        let locks = connect(&options.service).await?;
        let election = locks.election(&options.key)?;
        if options.watch {
            return watch(options, &election).await;
        }
        let seen = election.look().await?;
        let leader = seen.leader.as_ref();
        match options.json {
            true => {
                let candidates = seen.candidates.iter().map(Label::as_str);
                let candidates: Vec<&str> = candidates.collect();
                let mut shown = json_of(&options.key, leader);
                shown["candidates"] = candidates.into();
                writeln!(std::io::stdout(), "{shown}")?;
            }
            false => write(leader)?,
        }
        Ok(if leader.is_some() { 0 } else { NOBODY })
    })
}

/// Writes each leader, until this process is ended. Says once that the service is away.
async fn watch(options: &Leader, election: &Election) -> Result<u8, Failed> {
    let mut leaders = pin!(election.observe());
    let mut away = false;
    loop {
        tokio::select! {
            leader = leaders.next() => {
                let Some(leader) = leader else { return Ok(0) };
                match options.json {
                    true => {
                        let shown = json_of(&options.key, leader.as_ref());
                        writeln!(std::io::stdout(), "{shown}")?;
                    }
                    false => write(leader.as_ref())?,
                }
            }
            () = sleep(ASK_AGAIN) => match election.leader().await {
                Ok(_) => away = false,
                Err(error) if error.is_transient() => {
                    if !away {
                        say(&format!("{}; trying again", ending::chain(&error)));
                    }
                    away = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn write(leader: Option<&Elected>) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let Some(leader) = leader else {
        return writeln!(out, "nobody leads");
    };
    let (label, term) = (printable(leader.label.as_str()), leader.term);
    let info = String::from_utf8_lossy(&leader.info);
    match info.is_empty() {
        true => writeln!(out, "{label} leads term {term}"),
        false => writeln!(out, "{label} leads term {term}: {}", printable(&info)),
    }
}

fn json_of(key: &str, leader: Option<&Elected>) -> Value {
    let leader = leader.map(|leader| {
        json!({
            "label": leader.label.as_str(),
            "term": leader.term.get(),
            "info": std::str::from_utf8(&leader.info).ok(),
            "info_bytes": leader.info,
        })
    });
    json!({ "key": key, "leader": leader })
}
