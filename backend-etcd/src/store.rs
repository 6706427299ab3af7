//! The store: one key for each object, and one transaction for each write.

use std::iter::once;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, unfold};
use leasehold_api::{BackendError, Moment, Runtime, SessionId, TokioRuntime};
use leasehold_store::{Object, Pushed, Put, Tag, TagStore};
use tonic::{Code, Status};

use crate::client::{Client, not_written, perhaps_written};
use crate::rpc::{
    Compare, DeleteRangeRequest, LEASE_GRANT, LeaseGrantRequest, LeaseGrantResponse, PutRequest,
    RANGE, RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse,
};
use crate::watch::Watch;

/// How long etcd keeps a text at least and at most. Nobody reads it after it was pushed.
const TEXT_KEPT: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

/// A transaction has at most 128 operations, by default. A session that gets no text polls.
const TEXTS: usize = 100;

/// The objects below one prefix.
#[derive(Debug)]
pub(crate) struct EtcdStore {
    client: Arc<Client>,
    runtime: TokioRuntime,
    /// What all keys begin with.
    root: String,
    /// The lease of etcd for texts, and until when it is given to new ones.
    lease: Mutex<Option<(i64, Moment)>>,
}

impl EtcdStore {
    pub(crate) fn new(client: Client, runtime: TokioRuntime, prefix: &str) -> Self {
        // No prefix is the beginning of another one.
        let prefix = prefix.replace('%', "%25").replace('/', "%2F");
        Self {
            client: Arc::new(client),
            runtime,
            root: format!("leasehold/{prefix}/"),
            lease: Mutex::default(),
        }
    }

    fn key(&self, name: &str) -> Vec<u8> {
        [&*self.root, name].concat().into_bytes()
    }

    /// The key and the end of a range of all names with this beginning.
    fn range(&self, beginning: &str) -> (Vec<u8>, Vec<u8>) {
        let key = self.key(beginning);
        let mut end = key.clone();
        // No byte of a text is 255.
        *end.last_mut().expect("the root isn't empty") += 1;
        (key, end)
    }

    /// Applies the operations if the keys have these revisions. Returns the new tag.
    async fn execute(
        &self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
    ) -> Result<Option<Tag>, Status> {
        let request = TxnRequest { compare, success };
        let TxnResponse { header, succeeded } = self.client.call(TXN, request).await?;
        let revision = header.unwrap_or_default().revision;
        Ok(succeeded.then(|| tag_of(revision)))
    }

    /// Compares the tag of an object.
    fn has_tag(&self, name: &str, tag: Option<&Tag>) -> Result<Compare, BackendError> {
        let revision = tag.map_or(Ok(0), revision_of)?;
        Ok(Compare::last_change(self.key(name), revision))
    }

    /// The operations of a write. Its texts have this lease.
    fn operations(&self, write: &Put<'_>, lease: i64) -> Vec<RequestOp> {
        let object = put(self.key(write.name), write.bytes, 0);
        // One transaction has a key only once.
        let texts = write.texts.iter().take(TEXTS).enumerate();
        let texts = texts.map(|(n, (session, text))| {
            let key = format!("{}{n}", self.texts_to(*session));
            put(self.key(&key), text.as_bytes(), lease)
        });
        once(object).chain(texts).collect()
    }

    /// A lease of etcd that lasts for a while.
    async fn lease(&self) -> Result<i64, BackendError> {
        let (now, [least, most]) = (self.runtime.now(), TEXT_KEPT);
        let known = *self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((id, _)) = known.filter(|(_, until)| now < *until) {
            return Ok(id);
        }
        let ttl = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
        let request = LeaseGrantRequest { ttl };
        let granted = self.client.call(LEASE_GRANT, request).await;
        let LeaseGrantResponse { id } = match granted {
            Ok(granted) => granted,
            Err(status) => return Err(not_written(status)),
        };
        self.set_lease(Some((id, now.saturating_add(most - least))));
        Ok(id)
    }

    fn set_lease(&self, lease: Option<(i64, Moment)>) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    /// The range of the texts to a session. The session is secret.
    fn texts_to(&self, session: SessionId) -> String {
        let mut hash = sha1_smol::Sha1::from(b"leasehold ");
        hash.update(session.as_bytes());
        format!("push/{}/", hash.digest())
    }
}

fn tag_of(revision: i64) -> Tag {
    Tag::new(revision.to_be_bytes())
}

fn revision_of(tag: &Tag) -> Result<i64, BackendError> {
    let bytes = tag.as_bytes().try_into();
    let bytes = bytes.map_err(|_| BackendError::rejected("not a tag of this store"))?;
    Ok(i64::from_be_bytes(bytes))
}

fn put(key: Vec<u8>, value: &[u8], lease: i64) -> RequestOp {
    let value = value.to_vec();
    RequestOp {
        request_put: Some(PutRequest { key, value, lease }),
        request_delete_range: None,
    }
}

#[async_trait]
impl TagStore for EtcdStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.runtime.clone())
    }

    async fn read(&self, name: &str) -> Result<Option<Object>, BackendError> {
        let key = self.key(name);
        let request = RangeRequest {
            key,
            ..Default::default()
        };
        let mut answer: RangeResponse = self.client.read(RANGE, request).await?;
        let found = answer.kvs.pop();
        Ok(found.map(|found| Object::new(found.value, tag_of(found.mod_revision))))
    }

    async fn write(&self, write: Put<'_>) -> Result<Option<Tag>, BackendError> {
        let tags = once((write.name, write.expected)).chain(write.unchanged);
        let compares = tags.map(|(name, tag)| self.has_tag(name, tag));
        let compares: Vec<_> = compares.collect::<Result<_, _>>()?;
        let mut may_repeat = true;
        loop {
            let lease = match write.texts.is_empty() {
                true => 0,
                false => self.lease().await?,
            };
            let operations = self.operations(&write, lease);
            match self.execute(compares.clone(), operations).await {
                // etcd has lost the lease, and has written nothing.
                Err(status) if status.code() == Code::NotFound && may_repeat => {
                    self.set_lease(None);
                    may_repeat = false;
                }
                written => return written.map_err(perhaps_written),
            }
        }
    }

    async fn names(
        &self,
        beginning: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>, BackendError> {
        let (key, range_end) = self.range(beginning);
        let next = self.key(&format!("{after}\0"));
        let request = RangeRequest {
            key: key.max(next),
            range_end,
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            keys_only: true,
        };
        let answer: RangeResponse = self.client.read(RANGE, request).await?;
        let names = answer.kvs.into_iter().map(|found| {
            let key = String::from_utf8(found.key);
            let key = key.map_err(|_| BackendError::foreign_value("a key that is no text"))?;
            Ok(key.strip_prefix(&self.root).unwrap_or_default().to_owned())
        });
        names.collect()
    }

    fn can_remove(&self) -> bool {
        true
    }

    async fn remove(&self, name: &str, tag: &Tag) -> Result<(), BackendError> {
        let key = self.key(name);
        let delete = RequestOp {
            request_put: None,
            request_delete_range: Some(DeleteRangeRequest { key }),
        };
        let compares = vec![self.has_tag(name, Some(tag))?];
        let removed = self.execute(compares, vec![delete]).await;
        removed.map(drop).map_err(perhaps_written)
    }

    fn can_listen(&self) -> bool {
        true
    }

    async fn listen(&self, session: SessionId) -> Result<BoxStream<'static, Pushed>, BackendError> {
        let (client, runtime) = (Arc::clone(&self.client), self.runtime.clone());
        let texts = self.range(&self.texts_to(session));
        let watch = Watch::start(client, runtime, texts).await?;
        Ok(unfold(watch, Watch::next).boxed())
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.client.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leasehold_api::Certificates;
    use leasehold_test_servers::{EtcdServer, block_until, eventually};

    use futures_util::FutureExt;
    use tokio::runtime::Handle;

    use super::*;
    use crate::client::Target;

    fn store(server: &EtcdServer) -> EtcdStore {
        store_at(server, Handle::current())
    }

    fn store_at(server: &EtcdServer, home: Handle) -> EtcdStore {
        let target = Target::of(&server.url(), &Certificates::new()).expect("a URL");
        let client = Client::new(target, home);
        EtcdStore::new(client, TokioRuntime::current(), "")
    }

    /// The differential test: the same calls on etcd and on a map.
    #[tokio::test]
    async fn random_calls_are_answered_as_by_a_map() {
        let server = EtcdServer::start();
        let (store, mut random) = (store(&server), fastrand::Rng::with_seed(1));
        let mut map: BTreeMap<String, Object> = BTreeMap::new();
        let (mut tags, mut refused) = (Vec::new(), 0);
        for n in 0..2_000_u32 {
            let odd = "é\0/%\u{10FFFF}".repeat(random.usize(0..2));
            let name = format!("key/{odd}{}", random.u8(0..6));
            let known = map.get(&name).map(|object| object.tag.clone());
            let any = (!tags.is_empty()).then(|| tags[random.usize(0..tags.len())]);
            let expected = [known.clone(), any.map(tag_of), None][random.usize(0..3)].clone();
            match random.u8(0..8) {
                0..4 => {
                    let bytes = n.to_be_bytes();
                    let put = Put::new(&name, expected.as_ref(), &bytes);
                    let tag = store.write(put).await.expect("an answer");
                    assert_eq!(tag.is_some(), expected == known, "{name} {expected:?}");
                    let Some(tag) = tag else {
                        refused += 1;
                        continue;
                    };
                    let revision = revision_of(&tag).expect("a tag");
                    assert!(tags.last().is_none_or(|last| *last < revision), "{tag:?}");
                    tags.push(revision);
                    map.insert(name, Object::new(bytes.to_vec(), tag));
                }
                4 => {
                    let tag = expected.unwrap_or_else(|| tag_of(1));
                    store.remove(&name, &tag).await.expect("an answer");
                    if Some(tag) == known {
                        map.remove(&name);
                    }
                }
                5 | 6 => {
                    let read = store.read(&name).await.expect("an answer");
                    assert_eq!(read.as_ref(), map.get(&name));
                }
                _ => {
                    let beginning = ["key/", "key/3", "key/é", "k"][random.usize(0..4)];
                    let after = ["", "key/", "key/2", "key/é", &name][random.usize(0..5)];
                    let limit = random.usize(1..8);
                    let names = store.names(beginning, after, limit).await;
                    let all = map.keys().filter(|it| it.as_str() > after);
                    let all = all.filter(|it| it.starts_with(beginning)).take(limit);
                    assert_eq!(names.expect("an answer"), all.cloned().collect::<Vec<_>>());
                }
            }
        }
        assert!(
            tags.len() > 100 && refused > 100,
            "{} {refused}",
            tags.len()
        );
    }

    #[tokio::test]
    async fn too_large_value_is_refused() {
        let server = EtcdServer::start();
        let store = store(&server);
        // The first limit is that of etcd, the second one that of its library.
        for bytes in [1_600_000, 3_000_000] {
            let written = store.write(Put::new("k", None, &vec![7; bytes])).await;
            let is_rejected = matches!(written, Err(BackendError::Rejected { .. }));
            assert!(is_rejected, "{written:?}");
        }
        let written = store.write(Put::new("k", None, &[7; 1_400_000])).await;
        assert!(written.expect("an answer").is_some());
    }

    /// A write with a lease that etcd doesn't know is not applied, and is sent again with another lease.
    #[tokio::test]
    async fn lost_lease_of_texts_is_replaced() {
        let server = EtcdServer::start();
        let store = store(&server);
        let session = SessionId::from_bytes([7; 16]);
        let mut pushed = store.listen(session).await.expect("a subscription");
        let texts = ["a", "b"].map(|text| (session, text.to_owned()));
        let mut put = Put::new("k", None, b"1");
        put.texts = &texts;
        let far = store
            .runtime
            .now()
            .saturating_add(Duration::from_secs(3_600));
        store.set_lease(Some((7, far)));
        assert!(store.write(put).await.expect("an answer").is_some());
        for (_, text) in &texts {
            assert_eq!(pushed.next().await, Some(Pushed::Text(text.clone())));
        }
        // etcd forgets them.
        let leases = server.execute(&["lease", "list"]);
        let lease = leases.lines().last().expect("a lease");
        server.execute(&["lease", "revoke", lease]);
        let left = async || store.names("push/", "", 9).await.expect("an answer");
        eventually("they are gone", async || left().await.is_empty()).await;
    }

    /// A program that blocks its runtime sends a write late. A row that was removed meanwhile would come back, with an old token.
    #[tokio::test]
    async fn row_that_was_removed_does_not_come_back() {
        let server = EtcdServer::start();
        let late = store(&server);
        assert_eq!(late.read("k").await.expect("an answer"), None);
        let mut create = Put::new("k", None, b"late");
        create.unchanged = Some(("floor", None));
        let mut create = late.write(create);
        assert!((&mut create).now_or_never().is_none());
        // This runtime is blocked, while somebody else uses the lock.
        let elsewhere = async {
            let store = store(&server);
            let put = async |name| store.write(Put::new(name, None, b"1")).await;
            let tag = put("k").await.expect("an answer").expect("free");
            assert!(put("floor").await.expect("an answer").is_some());
            store.remove("k", &tag).await.expect("removed");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                runtime.block_on(elsewhere);
            });
        });
        assert_eq!(create.await.expect("an answer"), None);
        assert_eq!(late.read("k").await.expect("an answer"), None);
    }

    /// A write that was sent may be applied, also if the runtime of its connection ends. The next one isn't sent.
    #[test]
    fn write_in_flight_is_in_doubt_when_its_runtime_ends() {
        let server = EtcdServer::start();
        let [home, here] = [(); 2].map(|()| tokio::runtime::Runtime::new().expect("a runtime"));
        here.block_on(async {
            let store = store_at(&server, home.handle().clone());
            store.read("k").await.expect("an answer");
            server.pause();
            let put = Put::new("k", None, b"1");
            let mut write = store.write(put);
            assert!((&mut write).now_or_never().is_none());
            // Else it may not have been sent yet, and was certainly not executed.
            block_until("the write arrives", || server.has_unread());
            home.shutdown_background();
            let written = write.await;
            let is_unknown = matches!(written, Err(BackendError::OutcomeUnknown { .. }));
            assert!(is_unknown, "{written:?}");
            let written = store.write(put).await;
            assert!(matches!(written, Err(BackendError::Closed)), "{written:?}");
        });
    }
}
