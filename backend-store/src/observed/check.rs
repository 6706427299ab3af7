//! Checks a store without a clock for what the callers of its backend can't see.

use leasehold_api::BackendError;

use crate::store::Tag;
use crate::tag_store::{Put, TagStore};

/// Checks that a store compares tags, and changes them with each write.
///
/// The name must have no object. It has one afterwards, unless the store can remove it.
pub(super) async fn check_objects(store: &impl TagStore, name: &str) -> Result<(), BackendError> {
    if store.read(name).await?.is_some() {
        return wrong("the check needs a name without an object");
    }
    let Some(first) = write(store, name, None, b"first").await? else {
        return wrong("a write that creates an object must be applied");
    };
    if write(store, name, None, b"again").await?.is_some() {
        return wrong("a write must not create an object that exists");
    }
    if write(store, &missing(name), Some(&first), b"missing")
        .await?
        .is_some()
    {
        return wrong("a write must not replace an object that doesn't exist");
    }
    let Some(second) = write(store, name, Some(&first), b"second").await? else {
        return wrong("a write to an object with the expected tag must be applied");
    };
    if write(store, name, Some(&first), b"stale").await?.is_some() {
        return wrong("a write must not replace an object that has changed");
    }
    match store.read(name).await? {
        Some(found) if found.bytes == b"second" && found.tag == second && second != first => {}
        found => {
            return wrong(&format!(
                "the second write, {second:?}, must be read, not {found:?}"
            ));
        }
    }
    match store.can_remove() {
        true => check_removals(store, name, &first, &second).await,
        false => Ok(()),
    }
}

/// A lock that was granted meanwhile has another tag. A row that was removed doesn't come back.
async fn check_removals(
    store: &impl TagStore,
    name: &str,
    old: &Tag,
    current: &Tag,
) -> Result<(), BackendError> {
    let other = format!("{name}, other");
    for (changed, expected) in [(name, None), (name, Some(old)), (&missing(name), Some(old))] {
        let mut create = Put::new(&other, None, b"other");
        create.unchanged = Some((changed, expected));
        if store.write(create).await?.is_some() {
            return wrong("a write must not be applied if the other object has changed");
        }
    }
    store.remove(name, old).await?;
    if store.read(name).await?.is_none() {
        return wrong("a removal must not remove an object that has changed");
    }
    store.remove(name, current).await?;
    match store.read(name).await? {
        Some(_) => wrong("a removal must remove an object with the expected tag"),
        None => Ok(()),
    }
}

fn missing(name: &str) -> String {
    format!("{name}, missing")
}

async fn write(
    store: &impl TagStore,
    name: &str,
    expected: Option<&Tag>,
    bytes: &[u8],
) -> Result<Option<Tag>, BackendError> {
    store.write(Put::new(name, expected, bytes)).await
}

fn wrong(what: &str) -> Result<(), BackendError> {
    Err(BackendError::rejected(what))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use futures_util::FutureExt;
    use leasehold_api::Runtime;

    use super::*;
    use crate::tag_store::Object;

    /// A map, which compares tags or doesn't when it removes, or creates.
    #[derive(Debug, Default)]
    struct Memory {
        removes_all: bool,
        creates_late: bool,
        objects: Mutex<(u64, BTreeMap<String, Object>)>,
    }

    #[async_trait]
    impl TagStore for Memory {
        fn runtime(&self) -> Arc<dyn Runtime> {
            panic!("the check needs no time")
        }

        async fn read(&self, name: &str) -> Result<Option<Object>, BackendError> {
            Ok(self.objects.lock().expect("no panic").1.get(name).cloned())
        }

        async fn write(&self, put: Put<'_>) -> Result<Option<Tag>, BackendError> {
            let (writes, objects) = &mut *self.objects.lock().expect("no panic");
            let tag_of = |name| objects.get(name).map(|it: &Object| &it.tag);
            let changed = |(name, tag)| tag_of(name) != tag && !self.creates_late;
            if tag_of(put.name) != put.expected || put.unchanged.is_some_and(changed) {
                return Ok(None);
            }
            *writes += 1;
            let tag = Tag::new(writes.to_string().into_bytes());
            let object = Object::new(put.bytes.to_vec(), tag.clone());
            objects.insert(put.name.to_owned(), object);
            Ok(Some(tag))
        }

        async fn names(&self, _: &str, _: &str, _: usize) -> Result<Vec<String>, BackendError> {
            Ok(Vec::new())
        }

        fn can_remove(&self) -> bool {
            true
        }

        async fn remove(&self, name: &str, tag: &Tag) -> Result<(), BackendError> {
            let objects = &mut self.objects.lock().expect("no panic").1;
            if self.removes_all || objects.get(name).is_some_and(|it| it.tag == *tag) {
                objects.remove(name);
            }
            Ok(())
        }
    }

    fn checked(store: &Memory) -> Result<(), BackendError> {
        let checking = check_objects(store, "name");
        checking.now_or_never().expect("it never waits")
    }

    #[test]
    fn store_that_ignores_a_tag_is_found() {
        checked(&Memory::default()).expect("a good store");
        let removes_all = Memory {
            removes_all: true,
            ..Memory::default()
        };
        let creates_late = Memory {
            creates_late: true,
            ..Memory::default()
        };
        for (careless, text) in [
            (removes_all, "a removal must not"),
            (creates_late, "the other object has changed"),
        ] {
            let error = checked(&careless).expect_err("tokens would fall");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
