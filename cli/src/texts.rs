//! `leasehold completions` and `leasehold man`: texts for packages, made from the command line itself.

use std::io::Write;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::arguments::{Completions, ManPage, Subcommand};
use crate::ending::{self, Ending, USAGE};
use crate::output::say;

pub(crate) fn completions(options: &Completions) -> Ending {
    let mut command = Subcommand::command();
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, "leasehold", &mut text);
    print(&text)
}

pub(crate) fn man_page(options: &ManPage) -> Ending {
    let mut command = Subcommand::command();
    // It gives the sub-commands their full names.
    command.build();
    let mut page = &command;
    for name in &options.command {
        let Some(found) = page.find_subcommand(name) else {
            say(&format!("there is no sub-command {name:?}"));
            return Ending::Status(USAGE);
        };
        page = found;
    }
    let mut text = Vec::new();
    let rendered = Man::new(page.clone()).render(&mut text);
    rendered.map_or_else(|error| ending::of_output(&error), |()| print(&text))
}

fn print(text: &[u8]) -> Ending {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ending::Status(0),
        Err(error) => ending::of_output(&error),
    }
}
