//! Runs the conformance suite on the specimens, which must fail it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, LockBackend};
use leasehold_conformance::{
    Abilities, Case, Environment, Harness, SetupError, Timing, cases, run_case,
};
use leasehold_specimens::{Clients, Fault, SPECIMENS, Specimen};
use leasehold_test_servers::RedisServer;

/// More than there are cores, because most cases only wait.
const THREADS: usize = 24;
/// The unit of time of a case.
const UNIT: Duration = Duration::from_millis(300);
/// The unit of a case that runs again, by itself, because its result was wrong. A busy machine stalls a process for longer
/// than a unit now and then, and a case of time shows another fault then, or none.
const LONG_UNIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct OnServer {
    specimen: &'static Specimen,
    url: String,
    unit: Duration,
}

#[async_trait]
impl Harness for OnServer {
    fn name(&self) -> &str {
        self.specimen.name
    }

    fn capabilities(&self) -> Capabilities {
        self.specimen.capabilities()
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().fencing_tokens(false)
    }

    fn timing(&self) -> Timing {
        Timing::real().unit(self.unit)
    }

    /// On one thread, a reply never arrives while its command is being sent. So a call is suspended
    /// at each command, and a case can stop it there.
    fn block_on(&self, case: BoxFuture<'static, ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a tokio runtime");
        runtime.block_on(case);
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        // Two specimens may run the same case.
        let prefix = format!("{}:{namespace}:", self.specimen.name);
        Ok(Arc::new(Namespace(
            self.specimen.clients(&self.url, &prefix),
        )))
    }
}

#[derive(Debug)]
struct Namespace(Clients);

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(self.0.connect().await?)
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A case to run, and the fault that it must find. `None` if the specimen must pass.
struct Job {
    harness: Arc<dyn Harness>,
    specimen: &'static Specimen,
    case: &'static Case,
    finds: Option<&'static Fault>,
}

fn case(name: &str) -> &'static Case {
    let mut all = cases();
    all.find(|case| case.name() == name)
        .unwrap_or_else(|| panic!("unknown case {name}"))
}

fn on_server(specimen: &'static Specimen, url: &str, unit: Duration) -> Arc<dyn Harness> {
    let url = url.to_owned();
    Arc::new(OnServer {
        specimen,
        url,
        unit,
    })
}

/// The cases of a specimen. A lock without faults runs all that its capabilities allow.
fn jobs(specimen: &'static Specimen, url: &str) -> Vec<Job> {
    let harness = on_server(specimen, url, UNIT);
    let job = |case, finds| Job {
        harness: Arc::clone(&harness),
        specimen,
        case,
        finds,
    };
    if specimen.faults.is_empty() {
        let runs = |case: &&Case| case.ignored_because(&*harness).is_none();
        return cases().filter(runs).map(|case| job(case, None)).collect();
    }
    let faults = specimen.faults.iter();
    let failing = faults.map(|fault| job(case(fault.case), Some(fault)));
    let passing = specimen.passes.iter().map(|name| job(case(name), None));
    failing.chain(passing).collect()
}

/// Runs the case. Returns what is wrong with the result, if anything is.
fn run(job: &Job) -> Result<(), String> {
    if let Some(reason) = job.case.ignored_because(&*job.harness) {
        return Err(format!("does not run ({reason})"));
    }
    match (run_case(&job.harness, job.case), job.finds) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(fault)) => Err(format!("passes, but: {}", fault.did)),
        (Err(failure), None) => Err(format!("fails:\n{failure}")),
        (Err(failure), Some(fault)) => {
            let text = failure.to_string();
            if failure.rule() == fault.rule && text.contains(fault.shows) {
                return Ok(());
            }
            Err(format!("fails for another reason than {fault:?}:\n{text}"))
        }
    }
}

#[test]
fn each_specimen_is_rejected_for_its_fault() {
    let server = RedisServer::start();
    let began = Instant::now();
    let all = SPECIMENS.iter().flat_map(|it| jobs(it, &server.url()));
    let queue = Mutex::new(all);
    let work = || {
        let mut results = Vec::new();
        while let Some(job) = take(&queue) {
            let result = run(&job);
            results.push((job, result));
        }
        results
    };
    let results = thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(work));
        threads.map(|it| it.join().expect("no thread panicked"))
    });
    let (mut passed, mut wrong) = (Vec::new(), Vec::new());
    for (mut job, mut result) in results.into_iter().flatten() {
        let name = job.specimen.name;
        if let Err(text) = &result {
            println!("once more: {name}: {} {text}", job.case.name());
            job.harness = on_server(job.specimen, &server.url(), LONG_UNIT);
            result = run(&job);
        }
        match result {
            Ok(()) => passed.push((name, job.finds.is_some())),
            Err(text) => wrong.push(format!("{name}: {} {text}", job.case.name())),
        }
    }
    for Specimen { name, .. } in SPECIMENS {
        let of_it = |finds| passed.iter().filter(|it| **it == (*name, finds)).count();
        let (found, fine) = (of_it(true), of_it(false));
        println!("{name}: {found} fault(s) found, {fine} case(s) passed");
    }
    println!("{} cases in {:?}", passed.len(), began.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(passed.len() >= 200, "only {} cases ran", passed.len());
}

fn take<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next()
}

#[test]
fn checked_in_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/specimens.md");
    let checked_in = std::fs::read_to_string(path).expect("docs/specimens.md exists");
    assert!(
        checked_in == leasehold_specimens::page(),
        "docs/specimens.md is out of date; to regenerate it, run\n  \
         cargo run -p leasehold-specimens --example specimens > docs/specimens.md"
    );
}
