//! Keys can be any text: a backend encodes them and never mixes them up.

use leasehold_api::AcquireReply;

use crate::case::{Case, cases};
use crate::failure::{Verdict, want, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("names";
    any_text_is_a_key: ["S1", "S3"], [];
    no_two_names_collide: ["S1"], [];
    longest_names: ["S1"], [];
    names_never_act_as_patterns: ["S1", "S3"], [];
    hostile_names_wait_and_convert: ["rule 7", "rule 6"], [RwLocks, Convert, Queue];
    labels_are_any_text: ["rule 13"], [Inspect];
);

/// Names that mean something to a store, a script, a shell or a terminal.
#[rustfmt::skip]
const HOSTILE: &[&str] = &[
    "\0", "a\0b", "\n", "\r\n", "\t\u{1b}[31m", "\u{7f}", " ", "{", "}", "{}", "{a}b", "a{b}c{d}", "}{", "*", "?",
    "[a-z]", "a*", "\\", "\"", "'", "%00", "%", "$1", "KEYS[1]", "..", "/", "a:b", ":", "c:0123456789abcdef",
    "leasehold:{k}", "\u{e9}", "\u{1f512}", "\u{202e}rtl", "\u{feff}", "\u{0}\u{1}\u{2}\u{3}", "0", "-1", "nil",
];

async fn any_text_is_a_key(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    for name in HOSTILE {
        let lock = Lock::mutex(name);
        let held = a.ask(&lock).acquired("S1").await?;
        b.ask(&lock).finds_contention("S1").await?;
        held.renewed(world.units(300), "rule 2").await?;
        held.released("S3").await?;
        b.ask(&lock).acquired("S3").await?;
    }
    Ok(())
}

/// Acquires all keys at once. If two names were one key, the second attempt would fail.
async fn all_at_once(world: &World, names: &[String]) -> Verdict {
    let [a, b] = world.sessions().await?;
    let mut held = Vec::new();
    for name in names {
        let (attempt, reply) = a.ask(&Lock::mutex(name)).send().await?;
        want!(reply, AcquireReply::Acquired(_)).promised(format!(
            "S1: {name:?} is a separate key, whatever else is held"
        ))?;
        held.push(attempt);
    }
    for (attempt, name) in held.iter().zip(names) {
        b.ask(&Lock::mutex(name)).finds_contention("S1").await?;
        let promise = format!("S3: {name:?} is released by its holder");
        attempt.release_leaves(0, &promise).await?;
    }
    Ok(())
}

async fn no_two_names_collide(world: &World) -> Verdict {
    #[rustfmt::skip]
    let alike = [
        "k", "K", "k ", " k", "k\0", "k\n", "{k}", "{k", "k}", "k{}", "%6b", "k%20", "\\k", "k/", "k.", "k:", ":k",
        "e\u{301}", "\u{212a}", "\u{ff4b}", "k\u{200b}", "k%00", "k\\0", "%6B", "%256b", "{%6b}",
    ];
    let names = HOSTILE.iter().chain(&alike);
    let names: Vec<String> = names.map(ToString::to_string).collect();
    all_at_once(world, &names).await
}

async fn longest_names(world: &World) -> Verdict {
    let mut names = Vec::new();
    for last in ["a", "b", "{", "\0", "*"] {
        names.push("x".repeat(255) + last);
        names.push("{".repeat(255) + last);
        names.push("\u{e9}".repeat(127) + "x" + last);
    }
    names.push("x".repeat(255));
    all_at_once(world, &names).await
}

async fn names_never_act_as_patterns(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let plain = Lock::mutex("abc");
    let held = a.ask(&plain).acquired("S1").await?;
    for pattern in ["*", "a*", "a?c", "[a]bc", "abc*", "a\\bc", "{abc}", "abc\0"] {
        let lock = Lock::mutex(pattern);
        let other = b.ask(&lock).acquired("S1").await?;
        other.released("S3").await?;
    }
    b.ask(&plain).finds_contention("S3").await?;
    held.released("S3").await
}

async fn hostile_names_wait_and_convert(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    for name in ["{a}{b}", "\0\r\n", "*[?]", "\u{1f512}"] {
        let lock = Lock::rw(name);
        let held = a.ask(&lock).acquired("S1").await?;
        let (waiter, _) = b.ask(&lock).shared().wait().queued("rule 7").await?;
        held.downgrade(held.token()).await?;
        waiter.poll_granted("rule 6").await?;
        waiter.released("S3").await?;
        held.released("S3").await?;
    }
    Ok(())
}

async fn labels_are_any_text(world: &World) -> Verdict {
    let a = world.session().await?;
    let long = "\u{e9}".repeat(16);
    let labels = ["", "\0", "a\nb", "{}*?", "\u{1f512}", "host:42", &long];
    for (n, label) in labels.into_iter().enumerate() {
        let lock = Lock::mutex(&format!("k{n}"));
        a.ask(&lock).label(label).acquired("S1").await?;
        let view = a.inspect(&lock).await?.reply;
        let labels: Vec<_> = view.holders.iter().map(|h| h.label.as_str()).collect();
        want_eq!(labels, [label]).promised("rule 13: a label is returned unchanged")?;
    }
    Ok(())
}
