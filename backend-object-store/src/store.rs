//! Objects by name, and the errors of the library.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use leasehold_api::{BackendError, Runtime, TokioRuntime};
use leasehold_store::{Object, Put, Tag, TagStore};
use object_store::path::Path;
use object_store::{
    Error, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
};

/// The longest segment of a path. Some servers keep each segment as the name of a file, which has up to 255 bytes.
const SEGMENT: usize = 200;

/// The objects below a folder.
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    runtime: TokioRuntime,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some stores show their credentials.
        let mut objects = f.debug_struct("Objects");
        objects
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// A path is the folder, the prefix and the name, each in hex, so it has the order of the names. Segments of the prefix end with
/// `_`, and those of the name with `-` except for the last one. So no object has the path of a folder.
impl Objects {
    /// The objects of the programs with this prefix.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn new(store: Arc<dyn ObjectStore>, folder: Path, prefix: &str) -> Self {
        let digits = hex(prefix);
        let segments = digits
            .as_bytes()
            .chunks(SEGMENT)
            .map(String::from_utf8_lossy);
        let folder = segments.fold(folder, |folder, segment| folder.join(format!("{segment}_")));
        Self {
            store,
            folder,
            runtime: TokioRuntime::current(),
        }
    }

    fn path(&self, name: &str) -> Path {
        let digits = hex(name);
        let mut path = self.folder.clone();
        let mut rest = digits.as_str();
        while rest.len() > SEGMENT {
            let (segment, after) = rest.split_at(SEGMENT);
            path = path.join(format!("{segment}-"));
            rest = after;
        }
        path.join(rest)
    }

    /// The name of a path, unless it is that of another prefix, or another program has made it.
    fn name(&self, path: &Path) -> Option<String> {
        let rest = path.as_ref().strip_prefix(self.folder.as_ref())?;
        let digits = rest.chars().filter(|digit| !"/-".contains(*digit));
        let digits: Option<Vec<u32>> = digits.map(|digit| digit.to_digit(16)).collect();
        let byte = |pair: &[u32]| u8::try_from(pair.iter().fold(0, |high, low| high * 16 + low));
        let bytes: Result<Vec<u8>, _> = digits?.chunks(2).map(byte).collect();
        String::from_utf8(bytes.ok()?).ok()
    }
}

fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The tag of an object: its ETag, and its version if the store has those. They are text without line breaks.
fn tag_of(e_tag: Option<String>, version: Option<String>) -> Tag {
    let text = [e_tag, version].map(Option::unwrap_or_default).join("\n");
    Tag::new(text.into_bytes())
}

/// A tag that no object has. Google's store compares the version, which is a time, and refuses to do without.
pub(crate) fn foreign_tag() -> Tag {
    let e_tag = "\"00000000000000000000000000000000\"".into();
    tag_of(Some(e_tag), Some("1".into()))
}

fn version_of(tag: &Tag) -> Result<UpdateVersion, BackendError> {
    let text = std::str::from_utf8(tag.as_bytes()).ok();
    let parts = text.and_then(|text| text.split_once('\n'));
    let (e_tag, version) = parts.ok_or_else(|| BackendError::rejected("another store's tag"))?;
    let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(UpdateVersion {
        e_tag: part(e_tag),
        version: part(version),
    })
}

/// An error to a read, or a write. `unknown` is that of a request which may have been executed.
fn classify(error: Error, unknown: fn(&str) -> BackendError) -> BackendError {
    match error {
        Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::NotSupported { .. }
        | Error::NotImplemented { .. }
        | Error::InvalidPath { .. }
        | Error::UnknownConfigurationKey { .. } => refused(error),
        error if is_refusal(&error) => refused(error),
        error => unknown("the object store has failed").with_source(error),
    }
}

fn refused(error: Error) -> BackendError {
    BackendError::rejected("the object store refuses the request").with_source(error)
}

/// Whether the store has answered that the request itself is wrong, or belongs elsewhere: 3xx or 4xx, but 408 and 429. S3 says
/// 400 for a body that came too slowly. The library says so only in its text.
fn is_refusal(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if text.starts_with("Received redirect") {
            return true;
        }
        if let Some(status) = text.strip_prefix("Server returned non-2xx status code: ") {
            return matches!(status.as_bytes(), [b'3' | b'4', ..])
                && !["408", "429"].iter().any(|code| status.starts_with(code))
                && !status.contains("<Code>RequestTimeout</Code>");
        }
        cause = error.source();
    }
    false
}

fn not_read(error: Error) -> BackendError {
    classify(error, |reason| BackendError::unavailable(reason))
}

#[async_trait]
impl TagStore for Objects {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.runtime.clone())
    }

    async fn read(&self, name: &str) -> Result<Option<Object>, BackendError> {
        let found: GetResult = match self.store.get(&self.path(name)).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(not_read(error)),
        };
        let tag = tag_of(found.meta.e_tag.clone(), found.meta.version.clone());
        let bytes = found.bytes().await.map_err(not_read)?;
        Ok(Some(Object::new(bytes.to_vec(), tag)))
    }

    async fn write(&self, put: Put<'_>) -> Result<Option<Tag>, BackendError> {
        let mode = match put.expected {
            Some(tag) => PutMode::Update(version_of(tag)?),
            None => PutMode::Create,
        };
        let path = self.path(put.name);
        let bytes = put.bytes.to_vec().into();
        match self
            .store
            .put_opts(&path, bytes, PutOptions::from(mode))
            .await
        {
            Ok(written) => Ok(Some(tag_of(written.e_tag, written.version))),
            // A conflict (409) is an object that exists already, says the library.
            Err(
                Error::AlreadyExists { .. }
                | Error::Precondition { .. }
                | Error::NotModified { .. },
            ) => Ok(None),
            Err(Error::NotFound { .. }) if put.expected.is_some() => Ok(None),
            Err(error @ Error::NotFound { .. }) => {
                Err(BackendError::rejected("there is no such bucket").with_source(error))
            }
            Err(error) => Err(classify(error, |reason| {
                BackendError::outcome_unknown(reason)
            })),
        }
    }

    async fn names(
        &self,
        beginning: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>, BackendError> {
        let offset = match after > beginning {
            true => self.path(after),
            // Without its last digit, a path is just before those of all names that begin so.
            false => {
                let first = self.path(beginning);
                let before = Path::parse(&first.as_ref()[..first.as_ref().len() - 1]);
                before.map_err(|error| not_read(error.into()))?
            }
        };
        let mut found = self.store.list_with_offset(Some(&self.folder), &offset);
        let mut names = Vec::new();
        while names.len() < limit {
            let Some(meta) = found.try_next().await.map_err(not_read)? else {
                break;
            };
            let Some(name) = self.name(&meta.location) else {
                continue;
            };
            let begins = name.starts_with(beginning);
            if !begins && name.as_str() > beginning {
                break;
            }
            if begins && name.as_str() > after {
                names.push(name);
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn objects(prefix: &str) -> Objects {
        Objects::new(Arc::new(InMemory::new()), Path::from("a/b"), prefix)
    }

    /// Any name has a path of its own, whose segments are short, and no path is a folder of another one. Paths have the order
    /// of their names.
    #[tokio::test]
    async fn paths_are_those_of_names() {
        let objects = objects("p:");
        let long = "x".repeat(300);
        let mut names: Vec<&str> = (1..=300).step_by(50).map(|size| &long[..size]).collect();
        names.extend(["é/../%2F", "floor", "key/a", "key/a ", "key/\u{0}"]);
        names.sort_unstable();
        let paths: Vec<Path> = names.iter().map(|name| objects.path(name)).collect();
        assert!(paths.is_sorted(), "{paths:?}");
        for (path, name) in paths.iter().zip(&names) {
            assert_eq!(objects.name(path).as_deref(), Some(*name));
            assert!(path.parts().all(|part| part.as_ref().len() <= 255));
            let folder = format!("{path}/");
            assert!(
                !paths
                    .iter()
                    .any(|other| other.as_ref().starts_with(&folder))
            );
        }
    }

    #[tokio::test]
    async fn names_come_in_pages() {
        let objects = objects("");
        let long = "k".repeat(250);
        for name in ["floor", "key/a", "key/b", &long, "key/c", "kez"] {
            let put = Put::new(name, None, b"1");
            assert!(objects.write(put).await.expect("it works").is_some());
        }
        let page = async |after, limit| objects.names("key/", after, limit).await.expect("a page");
        assert_eq!(page("", 2).await, ["key/a", "key/b"]);
        assert_eq!(page("key/b", 2).await, ["key/c"]);
        assert_eq!(page("key/c", 2).await, Vec::<String>::new());
    }

    /// Prefixes share no object, also not the empty one, whose folder contains those of the others.
    #[tokio::test]
    async fn prefixes_are_apart() {
        let (empty, long) = (objects(""), "key/".repeat(25));
        let mut others = [":", "key/", "6b", long.as_str()]
            .map(|prefix| Objects::new(Arc::clone(&empty.store), Path::from("a/b"), prefix));
        for objects in &mut others {
            let put = Put::new("key/a", None, b"1");
            assert!(objects.write(put).await.expect("it works").is_some());
        }
        let names = empty.names("key/", "", 10).await.expect("a page");
        assert_eq!(names, Vec::<String>::new());
        assert_eq!(empty.read("key/a").await.expect("it works"), None);
        let names = others[0].names("key/", "", 10).await.expect("a page");
        assert_eq!(names, ["key/a"]);
    }
}
