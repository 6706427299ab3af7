//! The Dockerfile and the Kubernetes manifest of an election. No cluster is here, but the command line of the manifest is run
//! as it stands, by two replicas, on a server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_test_servers::{RedisServer, block_until};
use rustix::process::Signal;
use yaml_rust2::{Yaml, YamlLoader};

use crate::scenarios::operators::run as ask;
use crate::scenarios::support::{Place, Started, kill};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(name: &str) -> String {
    let path = root().join("examples/election").join(name);
    std::fs::read_to_string(path).expect("a file of the example")
}

/// The image, as its Dockerfile describes it.
struct Image {
    entry_point: Vec<String>,
    /// Where the files of the repository are in it.
    files: Vec<(String, String)>,
}

fn image() -> Image {
    let text = read("Dockerfile").replace("\\\n", " ");
    let mut image = Image {
        entry_point: Vec::new(),
        files: Vec::new(),
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["COPY", from, from_build, to] if from.starts_with("--from=") => {
                assert_eq!(from_build, "/source/target/release/leasehold");
                let program = env!("CARGO_BIN_EXE_leasehold").to_owned();
                image.files.push((to.to_owned(), program));
            }
            ["COPY", ".", "."] => {}
            ["COPY", file, to] => {
                let file = root().join(file);
                let file = file.canonicalize().expect("in the repository");
                let file = file.to_str().expect("UTF-8").to_owned();
                image.files.push((to.to_owned(), file));
            }
            ["ENTRYPOINT", ..] => {
                let list = line.strip_prefix("ENTRYPOINT").expect("its first word");
                image.entry_point = serde_json::from_str(list).expect("a JSON list");
            }
            ["RUN", "cargo", ..] => {
                let package = words.iter().position(|it| *it == "-p").expect("-p");
                assert_eq!(words[package + 1], env!("CARGO_PKG_NAME"));
                let program = words.iter().position(|it| *it == "--bin").expect("--bin");
                assert_eq!(words[program + 1], "leasehold");
            }
            _ => {}
        }
    }
    image
}

impl Image {
    /// The file of this machine that a path of the image means. A name alone is looked for in /usr/local/bin.
    fn find(&self, path: &str) -> String {
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/usr/local/bin/{path}"),
        };
        let found = self.files.iter().find(|(to, _)| *to == path);
        found.expect("a file of the image").1.clone()
    }
}

fn text(yaml: &Yaml) -> &str {
    yaml.as_str().expect("a text")
}

/// The documents of the manifest: the secret, and the deployment.
fn manifest() -> [Yaml; 2] {
    let documents = YamlLoader::load_from_str(&read("kubernetes.yaml")).expect("YAML");
    let [secret, deployment] = <[Yaml; 2]>::try_from(documents).expect("two documents");
    assert_eq!(text(&secret["kind"]), "Secret");
    assert_eq!(text(&deployment["kind"]), "Deployment");
    [secret, deployment]
}

/// The command of a replica, with the variables as Kubernetes would set and insert them.
fn replica(place: &Place, number: usize) -> Command {
    let [secret, deployment] = manifest();
    let image = image();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let mut variables = Vec::new();
    for variable in container["env"].as_vec().expect("a list") {
        let (name, from) = (text(&variable["name"]), &variable["valueFrom"]);
        let value = if let Some(key) = from["secretKeyRef"]["key"].as_str() {
            assert_eq!(from["secretKeyRef"]["name"], secret["metadata"]["name"]);
            assert!(text(&secret["stringData"][key]).starts_with("redis://"));
            place.url.clone()
        } else {
            match text(&from["fieldRef"]["fieldPath"]) {
                "metadata.name" => format!("scheduler-{number}"),
                "status.podIP" => format!("10.0.0.{number}"),
                other => panic!("{other}"),
            }
        };
        variables.push((name.to_owned(), value));
    }
    let mut line = image.entry_point.clone();
    for argument in container["args"].as_vec().expect("a list") {
        let mut argument = text(argument).to_owned();
        for (name, value) in &variables {
            argument = argument.replace(&format!("$({name})"), value);
        }
        assert!(!argument.contains("$("), "unknown variable: {argument}");
        line.push(argument);
    }
    let program = line.iter().position(|it| it == "--").expect("CMD") + 1;
    line[program] = image.find(&line[program]);
    let mut command = Command::new(image.find(&line[0]));
    command.args(&line[1..]).envs(variables);
    command.current_dir(place.file("."));
    command
}

#[test]
fn manifest_is_consistent() {
    let [_, deployment] = manifest();
    let spec = &deployment["spec"];
    assert_eq!(spec["replicas"].as_i64(), Some(2));
    let labels = &spec["template"]["metadata"]["labels"];
    assert_eq!(&spec["selector"]["matchLabels"], labels);
    let pod = &spec["template"]["spec"];
    let args = pod["containers"][0]["args"].as_vec().expect("a list");
    let kill_after = args
        .iter()
        .find_map(|it| text(it).strip_prefix("--kill-after="));
    let kill_after = humantime::parse_duration(kill_after.expect("given")).expect("a time");
    let grace = pod["terminationGracePeriodSeconds"].as_i64();
    let grace = Duration::from_secs(u64::try_from(grace.expect("a number")).expect("positive"));
    // CMD ends, and what a release takes.
    assert!(grace >= kill_after + Duration::from_secs(10), "{grace:?}");
}

/// The leader's machine dies, and later the other one is asked to end, as Kubernetes does it.
#[test]
fn two_replicas() {
    let server = RedisServer::start();
    let place = Place::new(&server.url(), "scheduler");
    let leader = || {
        let (_, text) = ask(&place, &["leader", "--json", &place.key]);
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let info = shown["leader"]["info"].as_str().unwrap_or_default();
        (
            info.to_owned(),
            shown["candidates"].as_array().map(Vec::len),
        )
    };
    let first = Started::new(replica(&place, 1));
    block_until("the first leads", || {
        leader().0 == "scheduler-1 10.0.0.1:8080"
    });
    let mut second = replica(&place, 2);
    second.stdout(File::create(place.file("second")).expect("a folder"));
    let mut second = Started::new(second);
    block_until("the second waits", || leader().1 == Some(1));
    let (keeper, cmd) = (first.keeper(), first.child_with("election/scheduler"));
    for process in [keeper, first.id(), cmd] {
        kill(process, Signal::KILL);
    }
    block_until("the second leads", || {
        leader().0 == "scheduler-2 10.0.0.2:8080"
    });
    // The script handles the signal from then on.
    block_until("CMD says so", || {
        let text = std::fs::read_to_string(place.file("second"));
        text.is_ok_and(|it| it.contains("leads term"))
    });
    second.signal(Signal::TERM);
    second.expect_status(0);
    assert_eq!(ask(&place, &["leader", &place.key]).0, Some(1));
}
