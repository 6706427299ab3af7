//! How many requests locks take, and which stores are refused.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use leasehold_api::{BackendError, LockClient};
use leasehold_object_store::{ConnectError, ObjectStoreBackend, Options};
use leasehold_test_servers::eventually;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A store in memory that counts requests, and may compare nothing, or versions instead of ETags.
#[derive(Debug, Default)]
struct Counted {
    objects: InMemory,
    reads: AtomicU64,
    writes: AtomicU64,
    creates_always: bool,
    replaces_always: bool,
    /// As Google Cloud Storage does.
    has_versions: bool,
}

impl Counted {
    /// The reads and writes since the last call.
    fn take(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.reads), take(&self.writes))
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counted")
    }
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let compares = match options.mode {
            PutMode::Create => !self.creates_always,
            _ => !self.replaces_always,
        };
        if !compares {
            options.mode = PutMode::Overwrite;
        }
        if let PutMode::Update(expected) = &mut options.mode
            && self.has_versions
        {
            let Some(version) = expected.version.take() else {
                let (store, source) = ("GCS", "Version required for conditional update".into());
                return Err(object_store::Error::Generic { store, source });
            };
            expected.e_tag = Some(version);
        }
        let mut written = self.objects.put_opts(location, payload, options).await?;
        if self.has_versions {
            written.version = written.e_tag.replace("equal contents".into());
        }
        Ok(written)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut found = self.objects.get_opts(location, options).await?;
        if self.has_versions {
            found.meta.version = found.meta.e_tag.replace("equal contents".into());
        }
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

async fn client(store: &Arc<Counted>) -> LockClient {
    let store: Arc<dyn ObjectStore> = Arc::<Counted>::clone(store);
    let backend = ObjectStoreBackend::from_store(store, Options::new()).await;
    LockClient::new(backend.expect("it compares"))
}

#[tokio::test]
async fn lock_and_its_release_are_four_requests() {
    let store = Arc::new(Counted::default());
    let locks = client(&store).await;
    // The first lock of a client, and the first one of a key, read the floor of the tokens.
    for expected in [(4, 2), (2, 2)] {
        store.take();
        let guard = locks.mutex("a").expect("valid").lock().await;
        guard.expect("free").release().await.expect("held");
        assert_eq!(store.take(), expected, "reads and writes");
    }
}

#[tokio::test]
async fn renewal_is_two_requests() {
    let store = Arc::new(Counted::default());
    let locks = client(&store).await;
    let lease = Duration::from_secs(3);
    let mutex = locks.mutex("a").expect("valid").lease(lease);
    let guard = mutex.lock().await.expect("free");
    store.take();
    let renewed = async || store.writes.load(Ordering::Relaxed) >= 3;
    eventually("three renewals", renewed).await;
    let (reads, writes) = store.take();
    println!("{reads} reads, {writes} writes");
    assert!(reads <= writes, "{reads} reads, {writes} writes");
    guard.release().await.expect("held");
}

/// It polls each second, and few polls are written.
#[tokio::test]
async fn waiter_writes_every_twenty_seconds() {
    let store = Arc::new(Counted::default());
    let [holder, waiter] = [client(&store).await, client(&store).await];
    let lease = Duration::from_secs(600);
    let mutex = holder.mutex("a").expect("valid").lease(lease);
    let guard = mutex.lock().await.expect("free");
    store.take();
    let mutex = waiter.mutex("a").expect("valid");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let has_written = async |count| {
        let written = async || store.writes.load(Ordering::Relaxed) >= count;
        eventually("the waiter writes", written).await;
    };
    has_written(1).await;
    // It has come.
    store.take();
    has_written(2).await;
    let (reads, writes) = store.take();
    println!("{reads} reads, {writes} writes");
    // A busy machine polls less often.
    assert!((20..=45).contains(&reads), "{reads} reads");
    assert_eq!(writes, 2);
    waiting.abort();
    guard.release().await.expect("held");
}

/// A store may show its credentials.
#[tokio::test]
async fn debug_text_does_not_show_the_store() {
    let store = Arc::new(Counted::default());
    assert!(format!("{store:?}").contains("Counted"));
    let backend = ObjectStoreBackend::from_store(store, Options::new()).await;
    let text = format!("{:?}", backend.expect("it compares"));
    assert!(
        text.contains("folder") && !text.contains("Counted"),
        "{text}"
    );
}

#[tokio::test]
async fn versions_are_compared_where_etags_are_not() {
    let store = Arc::new(Counted {
        has_versions: true,
        ..Counted::default()
    });
    let [holder, other] = [client(&store).await, client(&store).await];
    let guard = holder
        .mutex("a")
        .expect("valid")
        .lock()
        .await
        .expect("free");
    let tried = other.mutex("a").expect("valid").try_lock().await;
    assert!(!tried.expect("an answer").is_acquired());
    guard.release().await.expect("held");
}

async fn refusal(store: impl ObjectStore) -> String {
    let made = ObjectStoreBackend::from_store(Arc::new(store), Options::new()).await;
    match made {
        Err(ConnectError::Backend(error @ BackendError::Rejected { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn store_that_does_not_compare_is_refused() {
    let text = refusal(Counted {
        creates_always: true,
        ..Counted::default()
    })
    .await;
    assert!(text.contains("If-None-Match"), "{text}");
    let text = refusal(Counted {
        replaces_always: true,
        ..Counted::default()
    })
    .await;
    assert!(text.contains("If-Match"), "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    let text = refusal(LocalFileSystem::new_with_prefix(folder.path()).expect("a folder")).await;
    assert!(text.contains("refuses"), "{text}");
}

#[tokio::test]
async fn options_out_of_range_are_refused() {
    for options in [
        Options::new().key_prefix("x".repeat(101)),
        Options::new().call_timeout(Duration::from_secs(6)),
    ] {
        let made = ObjectStoreBackend::from_store(Arc::new(InMemory::new()), options).await;
        assert!(matches!(made, Err(ConnectError::Invalid(_))), "{made:?}");
    }
}
