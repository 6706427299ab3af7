//! Listing finds the keys in use, page by page.

use std::collections::BTreeSet;

use leasehold_api::{Key, List, LockBackend};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("listing";
    keys_in_use_are_listed: ["trait contract"], [List];
    only_the_prefix_is_listed: ["trait contract"], [List];
    pages_cover_all_keys: ["trait contract"], [List];
    client_lists_all_pages: ["trait contract"], [List];
);

/// Bounds the loop: more pages than any listing here has, empty ones included.
const MAX_PAGES: usize = 10_000;

/// All keys that begin with a text.
async fn listed(
    backend: &dyn LockBackend,
    prefix: &str,
    limit: u32,
) -> Result<BTreeSet<String>, Failure> {
    let (mut found, mut cursor) = (BTreeSet::new(), None);
    for _ in 0..MAX_PAGES {
        let request = List::new(prefix).with_limit(limit).with_cursor(cursor);
        let page = backend.list(&request).await?;
        found.extend(page.keys.iter().map(|key: &Key| key.as_str().to_owned()));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
    ensure!(false, found.len()).promised("trait contract: a listing ends")?;
    Ok(found)
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

async fn keys_in_use_are_listed(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    #[rustfmt::skip]
    let names = [
        "plain", "{a}b", "a{b", "}", "%", "%7B", "a*", "[a-z]", "\\", "\0\n", "\u{1f512}", "c:",
    ];
    for name in names {
        a.ask(&Lock::mutex(name)).acquired("S1").await?;
    }
    let backend = world.backend().await?;
    let found = listed(&*backend, "", 500).await?;
    want_eq!(found, set(names))
        .promised("trait contract: each key that is held is listed, by its own name")?;
    // A listing changes nothing.
    for name in names {
        b.ask(&Lock::mutex(name)).finds_contention("S1").await?;
    }
    Ok(())
}

async fn only_the_prefix_is_listed(world: &World) -> Verdict {
    let a = world.session().await?;
    for name in [
        "a", "a:1", "a:2", "a*", "a*1", "b:1", "A:1", "[ab]:1", "a{", "a{x",
    ] {
        a.ask(&Lock::mutex(name)).acquired("S1").await?;
    }
    let backend = world.backend().await?;
    for (prefix, expected) in [
        ("a:", &["a:1", "a:2"][..]),
        ("a*", &["a*", "a*1"]),
        ("[ab]", &["[ab]:1"]),
        ("a{", &["a{", "a{x"]),
        ("b:1", &["b:1"]),
        ("?", &[]),
        ("c", &[]),
    ] {
        let found = listed(&*backend, prefix, 500).await?;
        want_eq!(found, set(expected.iter().copied())).promised(format!(
            "trait contract: only keys that begin with {prefix:?} are listed"
        ))?;
    }
    Ok(())
}

async fn pages_cover_all_keys(world: &World) -> Verdict {
    let a = world.session().await?;
    let names: Vec<String> = (0..50).map(|n| format!("key:{n}")).collect();
    for name in &names {
        a.ask(&Lock::mutex(name)).acquired("S1").await?;
    }
    let backend = world.backend().await?;
    for limit in [1, 7, 50] {
        let found = listed(&*backend, "key:", limit).await?;
        want_eq!(found.len(), names.len())
            .promised(format!("trait contract: pages of {limit} keys cover all"))?;
    }
    Ok(())
}

async fn client_lists_all_pages(world: &World) -> Verdict {
    let client = world.client().await?;
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(client.mutex(format!("key:{n}"))?.lock().await?);
    }
    let (mut listing, mut found) = (client.list("key:1")?, BTreeSet::new());
    while let Some(keys) = listing.next_page().await? {
        ensure!(!keys.is_empty(), keys).promised("trait contract: no page of a client is empty")?;
        found.extend(keys);
    }
    // key:1, and key:10 to key:19.
    want_eq!(found.len(), 11).promised("trait contract: the client goes through all pages")
}
