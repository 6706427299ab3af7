//! Runs all measurements in several rounds and writes the report.
//!
//! A figure is the median of its rounds. Its ratio is the median of the rounds' ratios, because
//! each value is only compared with the floor of the same round.

mod plots;
mod summary;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use leasehold_test_servers::RedisServer;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::figures::{self, Effort, Fixture, Measurement, Often, Reading, median};
use crate::library::Library;
use crate::{Failure, Result};

/// The measurements to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of rounds.
    pub rounds: usize,
    /// The effort of each measurement.
    pub effort: Effort,
    /// The client libraries.
    pub libraries: Vec<Library>,
    /// Measures only figures whose ids start with one of these; all figures if empty.
    pub only: Vec<String>,
}

/// The results.
#[derive(Debug)]
pub struct Report {
    server: String,
    machine: String,
    plan: Plan,
    /// In the order of measurement.
    figures: Vec<Figure>,
    /// Measurements that failed.
    pub faults: Vec<String>,
}

/// One figure of one client.
#[derive(Clone, Debug)]
struct Figure {
    /// The id without the client, such as `distinct_keys.64`.
    name: String,
    /// A client library, `postgres` or `peer`.
    client: &'static str,
    /// Median of the rounds' values.
    value: f64,
    /// The unit of the value and the floor.
    unit: &'static str,
    /// Median of the rounds' floors.
    floor: Option<f64>,
    /// Median of the rounds' ratios.
    ratio: Option<f64>,
    /// The minimum and maximum of the rounds: of the ratio if there is one, else of the value.
    spread: Option<[f64; 2]>,
}

impl Figure {
    /// Returns `None` if no round has a value.
    fn of_rounds(client: &'static str, rounds: &[Reading]) -> Option<Self> {
        let rounds: Vec<&Reading> = rounds.iter().filter(|it| !it.value.is_nan()).collect();
        let last = rounds.last()?;
        let values: Vec<f64> = rounds.iter().map(|round| round.value).collect();
        let floors: Vec<f64> = rounds.iter().filter_map(|round| round.floor).collect();
        let ratio = |(value, floor): (&f64, &f64)| value / floor;
        let ratios: Vec<f64> = values.iter().zip(&floors).map(ratio).collect();
        let compared = if ratios.is_empty() { &values } else { &ratios };
        let least = compared.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = compared.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let some = |values: &Vec<f64>| (!values.is_empty()).then(|| median(values.clone()));
        Some(Self {
            name: last.id.clone(),
            client,
            unit: last.unit,
            spread: (rounds.len() > 1).then_some([least, greatest]),
            floor: some(&floors),
            ratio: some(&ratios),
            value: median(values),
        })
    }

    fn json(&self) -> Value {
        json!({
            "id": format!("{}.{}", self.name, self.client),
            "client": self.client,
            "value": self.value,
            "unit": self.unit,
            "floor": self.floor,
            "ratio": self.ratio,
            "spread": self.spread,
        })
    }
}

/// One measurement of one round on one library.
#[derive(Clone, Copy, Debug)]
struct Turn {
    round: usize,
    measurement: &'static Measurement,
    library: Library,
}

impl Turn {
    const fn client(&self) -> &'static str {
        match self.measurement.often {
            Often::Once => self.measurement.name,
            _ => self.library.name(),
        }
    }
}

impl Plan {
    /// Runs the measurements and prints progress to standard error. The report lists those that failed.
    pub fn run(self) -> Result<Report> {
        let turns = self.turns();
        if turns.is_empty() {
            return Err(format!("no figure id starts with {:?}", self.only).into());
        }
        // Panics without a server, before all measurements instead of after them.
        let server = server();
        let begun = Instant::now();
        let mut faults = Vec::new();
        let mut readings: BTreeMap<(usize, &'static str), Vec<Vec<Reading>>> = BTreeMap::new();
        for (number, turn) in turns.iter().enumerate() {
            let (name, client) = (turn.measurement.name, turn.client());
            let what = format!("round {}, {name}, {client}", turn.round);
            eprint!("[{}/{}] {what} …", number + 1, turns.len());
            let own = Instant::now();
            match self.measure(turn) {
                Ok(all) => {
                    let position = figures::ALL.iter().position(|own| own.name == name);
                    let key = (position.unwrap_or_default(), client);
                    readings.entry(key).or_default().push(all);
                }
                Err(fault) => faults.push(format!("{what}: {fault}")),
            }
            let [took, all] = [own, begun].map(|it| it.elapsed().as_secs_f64());
            eprintln!(" {took:.1} s; {all:.0} s in all");
        }
        let figures = self.figures(readings);
        Ok(Report {
            server,
            machine: machine(),
            figures,
            faults,
            plan: self,
        })
    }

    fn turns(&self) -> Vec<Turn> {
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            for measurement in figures::ALL.iter().filter(|one| self.wants(one)) {
                let mut libraries = self.libraries.clone();
                match measurement.often {
                    Often::Once => libraries.truncate(1),
                    // Neither library is always first.
                    _ if round % 2 == 0 => libraries.reverse(),
                    _ => {}
                }
                turns.extend(libraries.into_iter().map(|library| Turn {
                    round,
                    measurement,
                    library,
                }));
            }
        }
        turns
    }

    fn wants(&self, measurement: &Measurement) -> bool {
        let name = measurement.name;
        let begins = |only: &String| name.starts_with(only.as_str()) || only.starts_with(name);
        match self.only.as_slice() {
            [] => measurement.often != Often::IfNamed,
            only => only.iter().any(begins),
        }
    }

    /// Each measurement has a new server and a new runtime, so that it cannot affect the next one.
    fn measure(&self, turn: &Turn) -> Result<Vec<Reading>> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build()?;
        let (run, library) = (turn.measurement.run, turn.library);
        let fixture = Fixture {
            library,
            server: RedisServer::start(),
            effort: self.effort,
        };
        // In a task, as in a program that uses leasehold; not on the thread that calls `block_on`.
        let measured = runtime.spawn(async move { run(&fixture).await });
        runtime.block_on(measured).map_err(Failure::from)?
    }

    fn figures(&self, readings: BTreeMap<(usize, &'static str), Vec<Vec<Reading>>>) -> Vec<Figure> {
        let mut figures: Vec<Figure> = Vec::new();
        for ((_, client), rounds) in readings {
            for Reading { id, .. } in rounds.first().into_iter().flatten() {
                let same = |round: &Vec<Reading>| round.iter().find(|it| it.id == *id).cloned();
                let rounds: Vec<Reading> = rounds.iter().filter_map(same).collect();
                figures.extend(Figure::of_rounds(client, &rounds));
            }
        }
        let begins = |name: &str| self.only.iter().any(|only| name.starts_with(only.as_str()));
        figures.retain(|figure| self.only.is_empty() || begins(&figure.name));
        figures
    }
}

impl Report {
    /// Writes `report.json`, `summary.md` and the plots.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let figures: Vec<Value> = self.figures.iter().map(Figure::json).collect();
        let json = json!({
            "server": self.server,
            "machine": self.machine,
            "rounds": self.plan.rounds,
            "quick": self.plan.effort == Effort::Quick,
            "faults": self.faults,
            "figures": figures,
        });
        fs::write(folder.join("report.json"), format!("{json:#}"))?;
        fs::write(folder.join("summary.md"), self.summary())?;
        plots::draw(self, folder)
    }

    /// Writes what users compare to `performance.md`, between two markers, and the charts to
    /// `performance/`.
    pub fn write_docs(&self, docs: &Path) -> Result<()> {
        let page = docs.join("performance.md");
        let text = fs::read_to_string(&page)?;
        fs::write(
            page,
            summary::between_markers(&text, &summary::for_users(self))?,
        )?;
        let folder = docs.join("performance");
        fs::create_dir_all(&folder)?;
        plots::draw(self, &folder)
    }

    /// The summary, in Markdown.
    #[must_use]
    pub fn summary(&self) -> String {
        summary::of(self)
    }

    /// The value of a client's figure, if it was measured.
    fn value(&self, name: &str, client: &str) -> Option<f64> {
        Some(self.figure(name, client)?.value)
    }

    /// A client's figure as a ratio to its floor, if it has one.
    fn ratio(&self, name: &str, client: &str) -> Option<f64> {
        self.figure(name, client)?.ratio
    }

    /// The names of the client libraries.
    fn clients(&self) -> impl Iterator<Item = &'static str> {
        self.plan.libraries.iter().map(|library| library.name())
    }

    /// The figure of a client, if it was measured.
    fn figure(&self, name: &str, client: &str) -> Option<&Figure> {
        let mut figures = self.figures.iter();
        figures.find(|figure| figure.name == name && figure.client == client)
    }
}

fn server() -> String {
    let version = RedisServer::default_version();
    format!(
        "Redis {}.{}.{}",
        version.major, version.minor, version.patch
    )
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find(|line| line.starts_with("model name"));
    let model = named.and_then(|line| line.split_once(':'));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    format!("{cores} cores of {model}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: f64, floor: f64) -> Reading {
        Reading::new("pair", value, "µs").over(floor)
    }

    #[test]
    fn figure_that_a_server_does_not_have_is_left_out() {
        let none = [f64::NAN, f64::NAN].map(|value| reading(value, 10.0));
        assert!(Figure::of_rounds("fred", &none).is_none());
        let some = [f64::NAN, 11.0, 12.0].map(|value| reading(value, 10.0));
        let figure = Figure::of_rounds("fred", &some).expect("two rounds");
        assert_eq!(figure.spread, Some([1.1, 1.2]));
    }

    #[test]
    fn ratio_uses_the_floor_of_its_round() {
        // The machine was ten times slower in the second round.
        let rounds = [
            reading(11.0, 10.0),
            reading(140.0, 100.0),
            reading(12.0, 10.0),
        ];
        let figure = Figure::of_rounds("fred", &rounds).expect("three rounds");
        assert_eq!((figure.value, figure.floor), (12.0, Some(10.0)));
        assert_eq!((figure.ratio, figure.spread), (Some(1.2), Some([1.1, 1.4])));
        assert_eq!(figure.json()["id"], "pair.fred");
        assert!(Figure::of_rounds("fred", &[]).is_none());
    }

    #[test]
    fn plan_selects_measurements_by_prefix() {
        let plan = |only: &str| Plan {
            rounds: 2,
            effort: Effort::Quick,
            libraries: Library::ALL.to_vec(),
            only: vec![only.to_owned()],
        };
        let names = |only: &str| {
            let turns = plan(only).turns();
            let names = turns
                .iter()
                .map(|turn| (turn.round, turn.measurement.name, turn.client()));
            names.collect::<Vec<_>>()
        };
        let both = [(1, "held", "redis-rs"), (1, "held", "fred")];
        let reversed = [(2, "held", "fred"), (2, "held", "redis-rs")];
        assert_eq!(names("held.memory"), [both, reversed].concat());
        assert!(names("nothing").is_empty());
    }
}
