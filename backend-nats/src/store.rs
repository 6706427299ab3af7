//! The store: one message for each key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::try_join;
use leasehold_api::machine::Message;
use leasehold_api::{
    BackendError, ClockId, Cursor, Key, List, Listed, Moment, Notifications, Runtime, ServerTime,
    SessionId, Stamp, bounds,
};
use leasehold_store::{Read, Row, Store, Tag, Version, Write, Written, messages, page_of};
use serde_json::{Value, json};
use sha1_smol::Sha1;

use crate::bucket::{Bucket, TOO_OLD};
use crate::connection::{Link, Links, Refusal};
use crate::key;
use crate::listen::{self, Channel};

/// How often a read is repeated because the leader has changed.
const LEADERS: usize = 3;

/// The locks of one prefix.
#[derive(Debug)]
pub(crate) struct NatsStore {
    links: Arc<Links>,
    bucket: Bucket,
    prefix: String,
    leader: Mutex<Option<Leader>>,
}

/// The leader of the stream, as it has answered.
#[derive(Clone, Copy, Debug)]
struct Leader {
    stamp: Stamp,
    /// Before it was asked.
    asked: Moment,
    is_replicated: bool,
}

/// A row, and when the leader has stored it.
type Stored = Option<(Row, ServerTime)>;

impl NatsStore {
    pub(crate) fn new(links: Links, bucket: &Bucket, prefix: &str) -> Self {
        Self {
            links: Arc::new(links),
            bucket: bucket.clone(),
            prefix: prefix.to_owned(),
            leader: Mutex::new(None),
        }
    }

    /// Creates or checks the bucket, once.
    pub(crate) async fn prepare(&self) -> Result<(), BackendError> {
        let link = self.links.link().await?;
        let preparing = self.bucket.prepare(&link);
        let prepared = self.runtime().timeout(bounds::CONNECT_TIMEOUT, preparing);
        let late = || BackendError::unavailable("JetStream gave no answer in time");
        prepared.await.unwrap_or_else(|| Err(late()))
    }

    fn leader(&self) -> Option<Leader> {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the leader of the stream for its clock.
    async fn ask_leader(&self, link: &Link) -> Result<Leader, BackendError> {
        let asked = self.links.runtime().now();
        let answer = self.bucket.ask(link, "STREAM.INFO", json!({})).await?;
        let info = answer.map_err(Refusal::into_error)?;
        let untold = || BackendError::rejected(TOO_OLD);
        let at = time_of(&info["ts"]).ok_or_else(untold)?;
        let no_leader = || BackendError::unavailable("the stream has no leader");
        let name = info["cluster"]["leader"].as_str().ok_or_else(no_leader)?;
        let hash = Sha1::from(name).digest().bytes();
        let (number, _) = hash.split_first_chunk().expect("a hash has 20 bytes");
        let leader = Leader {
            stamp: Stamp {
                clock: ClockId::new(u64::from_be_bytes(*number)),
                at,
            },
            asked,
            is_replicated: info["config"]["num_replicas"].as_u64() > Some(1),
        };
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = Some(leader);
        Ok(leader)
    }

    /// Asks the leader for a row. A `DIRECT.GET` could be answered by a replica.
    async fn ask_row(&self, link: &Link, key: &Key) -> Result<Stored, BackendError> {
        let request = json!({ "last_by_subj": self.subject_of(key) });
        let message = match self.bucket.ask(link, "STREAM.MSG.GET", request).await? {
            Ok(answer) => answer["message"].clone(),
            Err(refusal) if refusal.is_no_message() => return Ok(None),
            Err(refusal) => return Err(refusal.into_error()),
        };
        let foreign = || BackendError::foreign_value("a message that is no row");
        let data = message["data"].as_str().unwrap_or_default();
        let data = STANDARD.decode(data).map_err(|_| foreign())?;
        let (version, bytes) = data.split_first_chunk().ok_or_else(foreign)?;
        let sequence = message["seq"].as_u64().ok_or_else(foreign)?;
        let stored_at = time_of(&message["time"]).ok_or_else(foreign)?;
        let row = Row::new(Version::new(u64::from_be_bytes(*version)), bytes.to_vec());
        Ok(Some((row.with_tag(tag(sequence)), stored_at)))
    }

    fn subject_of(&self, key: &Key) -> String {
        self.bucket
            .subject_of(&key::encode(&format!("{}{key}", self.prefix)))
    }

    /// Whether a time may have come on the leader's clock.
    fn may_be_over(&self, time: ServerTime) -> bool {
        let now = self.links.runtime().now();
        self.leader().is_none_or(|leader| {
            let elapsed = now.saturating_since(leader.asked);
            leader.stamp.at.saturating_add(elapsed) >= time
        })
    }

    fn channel_of(&self, session: &SessionId) -> String {
        // A session is secret.
        let mut hash = Sha1::from(b"leasehold ");
        hash.update(session.as_bytes());
        format!("_LEASEHOLD.{}.{}", self.bucket.0, hash.digest())
    }

    async fn deliver(&self, link: &Link, sent: &[Message], stamp: Stamp) {
        let mut by_channel: BTreeMap<String, Vec<&Message>> = BTreeMap::new();
        for message in sent {
            let channel = self.channel_of(&message.to);
            by_channel.entry(channel).or_default().push(message);
        }
        for (channel, sent) in by_channel {
            let text = messages::encode(sent, stamp.at);
            link.tell(channel, format!("{} {text}", stamp.clock.get()))
                .await;
        }
    }

    /// The keys of all rows, in their order.
    async fn names(&self) -> Result<Vec<String>, BackendError> {
        let subjects = self.subjects().await?;
        let start = self.bucket.subject_of("");
        let name_in = |subject: &String| {
            let key = key::decode(subject.strip_prefix(&start)?)?;
            Some(key.strip_prefix(&self.prefix)?.to_owned())
        };
        let mut names: Vec<String> = subjects.iter().filter_map(name_in).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The subjects of all messages. Pages of them overlap: when a row ages out, the ones behind it move up.
    async fn subjects(&self) -> Result<BTreeSet<String>, BackendError> {
        let link = self.links.link().await?;
        let (mut seen, mut offset) = (BTreeSet::new(), 0);
        loop {
            let filter = self.bucket.subject_of(">");
            let request = json!({ "subjects_filter": filter, "offset": offset });
            let answer = self.bucket.ask(&link, "STREAM.INFO", request).await?;
            let info = answer.map_err(Refusal::into_error)?;
            let page = info["state"]["subjects"].as_object();
            let page = page.into_iter().flatten();
            let page: BTreeSet<String> = page.map(|(subject, _)| subject.clone()).collect();
            let is_gap = page.first().is_none_or(|first| Some(first) > seen.last());
            if offset > 0 && is_gap {
                offset /= 2;
                continue;
            }
            let end = offset + page.len();
            let is_last = page.is_empty() || info["total"].as_u64() <= Some(end as u64);
            offset = end - page.len().div_ceil(100);
            seen.extend(page);
            if is_last {
                return Ok(seen);
            }
        }
    }
}

fn tag(sequence: u64) -> Tag {
    Tag::new(sequence.to_be_bytes())
}

fn sequence_of(tag: &Tag) -> Option<u64> {
    tag.as_bytes().try_into().ok().map(u64::from_be_bytes)
}

/// A time as JetStream writes it, with nanoseconds.
fn time_of(value: &Value) -> Option<ServerTime> {
    let time: SystemTime = humantime::parse_rfc3339_weak(value.as_str()?).ok()?;
    let micros = time.duration_since(UNIX_EPOCH).ok()?.as_micros();
    Some(ServerTime::from_micros(u64::try_from(micros).ok()?))
}

#[async_trait]
impl Store for NatsStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.links.runtime().clone())
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        let link = self.links.link().await?;
        Ok(self.ask_leader(&link).await?.stamp)
    }

    /// Asks for the row and for the clock at once. The clock may be read first, so the time is never before the row was stored.
    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        let link = self.links.link().await?;
        for _ in 0..LEADERS {
            let before = self.leader();
            let asking = try_join(self.ask_leader(&link), self.ask_row(&link, key));
            let (Leader { mut stamp, .. }, stored) = asking.await?;
            if before.is_some_and(|before| before.stamp.clock == stamp.clock) {
                let (row, stored_at) = stored.unzip();
                stamp.at = stamp.at.max(stored_at.unwrap_or(stamp.at));
                return Ok(Read::new(stamp, row));
            }
        }
        Err(BackendError::unavailable("the stream changes its leader"))
    }

    /// A leader that was deposed doesn't know it at once, and may still answer.
    fn reads_may_be_old(&self) -> bool {
        self.leader().is_none_or(|leader| leader.is_replicated)
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let link = self.links.link().await?;
        let foreign = || BackendError::foreign_value("a tag of another store");
        let sequence = write.tag.map_or(Some(0), sequence_of);
        let sequence = sequence.ok_or_else(foreign)?.to_string();
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, sequence);
        let mut payload = write.version.get().to_be_bytes().to_vec();
        payload.extend_from_slice(write.bytes);
        if write.expected.is_some() != write.tag.is_some() || self.may_be_over(write.deadline) {
            return Ok(Written::NotApplied);
        }
        let answer = match link
            .ask(self.subject_of(write.key), headers, payload)
            .await?
        {
            Ok(answer) => answer,
            Err(refusal) if refusal.is_conflict() => return Ok(Written::NotApplied),
            Err(refusal) => return Err(refusal.into_error_of_write()),
        };
        let unreadable = || BackendError::outcome_unknown("the answer has no sequence");
        let sequence = answer["seq"].as_u64().ok_or_else(unreadable)?;
        self.deliver(&link, write.messages, write.stamp).await;
        Ok(Written::applied().with_tag(tag(sequence)))
    }

    fn can_listen(&self) -> bool {
        true
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let channel = Channel {
            links: Arc::clone(&self.links),
            subject: self.channel_of(&session),
        };
        listen::subscribe(channel).await
    }

    fn can_list(&self) -> bool {
        true
    }

    /// Reads the names of all rows for each page.
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let mut names = self.names().await?;
        let after = request.cursor.as_ref().map_or("", Cursor::as_str);
        names.retain(|name| name.as_str() > after && *name >= request.prefix);
        names.truncate(usize::try_from(request.limit).unwrap_or(usize::MAX));
        Ok(page_of(&names, &request.prefix, request.limit))
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.links.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use futures_util::future::{Either, select};
    use leasehold_test_servers::NatsServers;
    use tokio::runtime::Handle;

    use super::*;
    use crate::connection::Place;

    const PAGE: usize = 200;

    /// What a server answers that has pages of 200 subjects.
    fn page_from(subjects: &BTreeSet<String>, offset: usize) -> Value {
        let page = subjects.iter().skip(offset).take(PAGE);
        let page: serde_json::Map<_, _> = page.map(|name| (name.clone(), json!(1))).collect();
        json!({ "state": { "subjects": page }, "total": subjects.len() })
    }

    /// Rows age out before the second page is asked for. Other programs' subjects are no keys.
    #[tokio::test]
    async fn listing_skips_no_row_when_others_age_out() {
        let server =
            NatsServers::start("mappings { \"$JS.API.STREAM.INFO.KV_leasehold\": \"pages\" }");
        let place = Place::of_url(&server.url()).expect("a URL");
        let links = Links::new(place, Handle::current(), Arc::default());
        let store = NatsStore::new(links, &Bucket("leasehold".to_owned()), "a:");
        let link = store.links.link().await.expect("connected");
        let mut requests = link.subscribe("pages".to_owned()).await.expect("may");
        let keys: Vec<String> = (100..800).map(|number| number.to_string()).collect();
        let own = |key: &String| format!("$KV.leasehold.a=3A{key}");
        let mut subjects: BTreeSet<String> = keys.iter().map(own).collect();
        subjects.extend(["$KV.leasehold.b.a=3Ax", "$KV.leasehold.b=3Ax"].map(str::to_owned));
        let answering = async {
            while let Some(request) = requests.next().await {
                let asked: Value = serde_json::from_slice(&request.payload).expect("a request");
                let offset = asked["offset"].as_u64().expect("an offset");
                let page = page_from(&subjects, usize::try_from(offset).expect("small"));
                let reply = request.reply.expect("a request").to_string();
                link.tell(reply, page.to_string()).await;
                if offset == 0 {
                    subjects.retain(|name| *name >= own(&"150".to_owned()));
                }
            }
        };
        let listing = store.names();
        let Either::Left((listed, _)) = select(Box::pin(listing), Box::pin(answering)).await else {
            panic!("the connection was lost");
        };
        // Of those that have gone, some were seen.
        let mut listed = listed.expect("listed");
        listed.retain(|key| key.as_str() >= "150");
        assert_eq!(listed, keys[50..]);
    }
}
