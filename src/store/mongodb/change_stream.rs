//! Reads from a change stream which keys became free, or have room again, and from another one for which keys a process
//! begins to wait. A stream ends with its first error, and `runtime/listener.rs` opens it again.
//!
//! The server sends only the changes after which a waiter may be granted the key:
//!
//! - A release by the last holder, and an eviction, remove the lease or the list of holders, and write nothing instead.
//! - After a release by one of several holders, the list of holders is shorter, and the holders behind it move up. If
//!   the release has a minimum hold, the holder gets another lease id instead, whether it is the sole one or in a list.
//!   A downgrade writes a list, or changes a mode. None of these changes the fence.
//!
//! These changes also copy the places of the waiting processes to the field `next`, so that not all processes ask at
//! the same moment. The event does not contain `next` if it is the same as before.
//!
//! The other changes are left out. Renewals change nothing but times. Grants and upgrades raise the fence. A reentrant
//! grant keeps the fence, but it only adds a holder. If it also removes holders that have expired, its event is sent,
//! which does no harm.
//!
//! A process that begins to wait adds a place to the list `waiters`. The event names the new element, or the list if it
//! was empty. When a place is written again, the event names fields of its element. So the server can leave that out.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use mongodb::{
    bson::{Bson, Document, doc},
    change_stream::ChangeStream,
    options::ReadConcern,
};

use super::{
    MongoStore,
    error::{classify, code},
};
use crate::{
    model::{Error, Key, LeaseId, Mode, Place, SCHEMA},
    store::{AwaitedKeys, FreedKey, FreedKeys, stored::time_of},
};

/// The longest time that the server waits for an event before it answers that there is none.
const MAX_AWAIT_TIME: Duration = Duration::from_secs(1);
/// The code with which a standalone server refuses to open a change stream.
const NO_CHANGE_STREAMS: i32 = 40_573;

/// What the events of a stream tell.
type Told<T> = BoxStream<'static, Result<Vec<T>, Error>>;

impl MongoStore {
    pub(super) async fn watch_freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.watch(pipeline(), freed).await
    }

    pub(super) async fn watch_awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        self.watch(places_pipeline(), key).await
    }

    /// `None` if the server has no change streams, or the store speaks the classic dialect.
    async fn watch<T: Send + 'static>(
        &self,
        pipeline: [Document; 2],
        read: fn(&Document) -> Option<T>,
    ) -> Result<Option<Told<T>>, Error> {
        if !self.has_pipelines().await? {
            return Ok(None);
        }
        let locks = self.locks.reads();
        let opened = locks
            .watch()
            .pipeline(pipeline)
            // A change stream accepts no other read concern.
            .read_concern(ReadConcern::majority())
            .max_await_time(MAX_AWAIT_TIME)
            .await;
        match opened {
            Ok(events) => {
                let next = move |events| next_event(events, read);
                Ok(Some(stream::try_unfold(events.with_type(), next).boxed()))
            }
            Err(error) if code(&error) == Some(NO_CHANGE_STREAMS) => Ok(None),
            Err(error) => Err(classify(error)),
        }
    }
}

/// Takes the next event, or asks the server once for one, and returns what `read` finds in it. `None` if the server has
/// closed the stream. Otherwise each further request would get that answer, without a pause.
async fn next_event<T>(
    mut events: ChangeStream<Document>,
    read: fn(&Document) -> Option<T>,
) -> Result<Option<(Vec<T>, ChangeStream<Document>)>, Error> {
    let event = events.next_if_any().await.map_err(classify)?;
    if event.is_none() && !events.is_alive() {
        return Ok(None);
    }
    let found = event.as_ref().and_then(read);
    Ok(Some((found.into_iter().collect(), events)))
}

/// What an event tells; `None` if the id is not a key, so that the document is not a lock.
fn freed(event: &Document) -> Option<FreedKey> {
    let freed = FreedKey::new(key(event)?);
    Some(match next(event) {
        Some(next) => freed.next(next),
        None => freed,
    })
}

/// The processes that come next, if the event tells: the first one whose place counts, and those behind it that can
/// hold the key beside it.
fn next(event: &Document) -> Option<Vec<LeaseId>> {
    let description = event.get_document("updateDescription");
    let changed = description.and_then(|it| it.get_document("updatedFields"));
    let document = changed.or_else(|_| event.get_document("fullDocument"));
    let places = document.ok()?.get_array("next").ok()?;
    // Servers before 6.0 do not tell the time of a change.
    let now = time(event, "wallTime");
    let counts = |place: &&Document| {
        let until = time(place, "until");
        until.is_some_and(|until| now.is_none_or(|now| Place::counts(until, now)))
    };
    let mode = |place: &Document| place.get_str("mode").map(str::to_owned).ok();
    let mut places = places.iter().filter_map(Bson::as_document).filter(counts);
    let first = places.next()?;
    let lets_in = mode(first).is_some_and(|mode| mode != Mode::Exclusive.as_str());
    let beside = places.take_while(|place| lets_in && mode(place) == mode(first));
    let waiter = |place: &Document| LeaseId::parse(place.get_str("waiter").ok()?);
    [first].into_iter().chain(beside).map(waiter).collect()
}

fn time(document: &Document, field: &str) -> Option<DateTime<Utc>> {
    let time = document.get_datetime(field).ok()?;
    Some(time_of(time.timestamp_millis()))
}

/// The key in an event; `None` if the id is not a key.
fn key(event: &Document) -> Option<Key> {
    let document = event.get_document("documentKey").ok()?;
    Key::new(document.get_str("_id").ok()?).ok()
}

/// Selects the events after which a waiter may be granted the key. Of each event it keeps the key, the places of the
/// processes that come next, the time, and the resume token (`_id`), which the driver needs.
fn pipeline() -> [Document; 2] {
    [
        doc! { "$match": {
            "operationType": { "$in": ["update", "replace"] },
            "$expr": { "$or": [is_free(), has_room()] },
        } },
        doc! { "$project": {
            "documentKey._id": 1,
            "wallTime": 1,
            "updateDescription.updatedFields.next": 1,
            "fullDocument.next": 1,
        } },
    ]
}

/// Selects the events in which a place was added to the queue of a key, also where a dead one was.
fn places_pipeline() -> [Document; 2] {
    let fields = doc! { "$objectToArray": "$updateDescription.updatedFields" };
    let is_new = doc! { "$anyElementTrue": { "$map": {
        // Without the default, an event without the fields would end the stream with an error.
        "input": { "$ifNull": [fields, []] },
        "in": { "$regexMatch": { "input": "$$this.k", "regex": r"^waiters(\.[0-9]+(\.waiter)?)?$" } },
    } } };
    [
        doc! { "$match": { "operationType": "update", "$expr": is_new } },
        doc! { "$project": { "documentKey._id": 1 } },
    ]
}

/// Whether the last holder has left.
fn is_free() -> Document {
    let removed = doc! { "$ifNull": ["$updateDescription.removedFields", []] };
    let kept = |field: &str| {
        let written = format!("$updateDescription.updatedFields.{field}");
        doc! { "$ne": [{ "$type": written }, "missing"] }
    };
    doc! { "$and": [
        { "$ne": [{ "$setIntersection": [removed, ["lease", "holders"]] }, []] },
        { "$not": [{ "$or": [kept("lease"), kept("holders")] }] },
    ] }
}

/// Whether one of several holders has left, or ends sooner than before, or whether its mode may now admit others.
fn has_room() -> Document {
    // Without the default, a list that is missing in an event would end the stream with an error.
    let list = |list: Bson| doc! { "$ifNull": [list, []] };
    let fields = doc! { "$objectToArray": "$updateDescription.updatedFields" };
    // The names of changed fields contain dots, so they are compared as text and not used as paths.
    let renamed = doc! { "$anyElementTrue": { "$map": {
        "input": list(fields.into()),
        "in": { "$regexMatch": {
            "input": "$$this.k",
            "regex": r"^(lease|holders(\.[0-9]+\.(lease|mode))?)$",
        } },
    } } };
    // A downgrade and a reentrant grant of a sole holder write a list and remove `lease`. Only the downgrade makes room:
    // the first holder of the other list is exclusive. A grant writes a fence.
    let first = doc! { "$arrayElemAt": ["$updateDescription.updatedFields.holders.mode", 0] };
    let removed = list("$updateDescription.removedFields".into());
    let is_sole_no_more = doc! { "$in": ["lease", removed] };
    let admits = [Mode::Shared, Mode::Permits].map(|mode| Bson::from(mode.as_str()));
    let opened = doc! { "$and": [is_sole_no_more.clone(), { "$in": [first, admits.to_vec()] }] };
    let renamed = doc! { "$and": [renamed, { "$not": [is_sole_no_more] }] };
    let shorter = list("$updateDescription.truncatedArrays.field".into());
    let fewer = doc! { "$in": ["holders", shorter] };
    doc! { "$cond": [
        { "$eq": ["$operationType", "update"] },
        { "$or": [opened, { "$and": [
            { "$eq": [{ "$type": "$updateDescription.updatedFields.fence" }, "missing"] },
            { "$or": [fewer, renamed] },
        ] }] },
        // The event of a replacement does not show what was there before, so it is sent for each lock without a sole
        // holder. Replacements are rare, and an unnecessary hint is harmless.
        { "$and": [
            { "$eq": ["$fullDocument.schema", SCHEMA] },
            { "$eq": [{ "$type": "$fullDocument.lease" }, "missing"] },
        ] },
    ] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_no_key_is_skipped() {
        let event = |id: Bson| doc! { "_id": {}, "documentKey": { "_id": id } };
        assert_eq!(key(&event("$k.".into())).unwrap().as_str(), "$k.");
        for id in [5.into(), "".into(), "x".repeat(513).into()] {
            assert_eq!(key(&event(id)), None);
        }
        assert_eq!(key(&doc! { "_id": {} }), None);
    }

    #[test]
    fn the_first_place_that_counts_comes_next() {
        let [before, after_a_step, live] = [(); 3].map(|()| LeaseId::random());
        let at = |millis| mongodb::bson::DateTime::from_millis(millis);
        let place =
            |waiter: LeaseId, until| doc! { "waiter": waiter.to_string(), "until": at(until) };
        // The second place was taken before the clock stepped back.
        let places = [
            place(before, 5_000),
            place(after_a_step, 5_000 + 60_001),
            place(live, 5_001),
        ];
        let event = |now: Document| {
            let changed = doc! { "next": places.clone().to_vec() };
            let mut event = doc! { "updateDescription": { "updatedFields": changed } };
            event.extend(now);
            next(&event)
        };
        assert_eq!(event(doc! { "wallTime": at(5_000) }), Some(vec![live]));
        assert_eq!(
            event(doc! {}),
            Some(vec![before]),
            "a server that tells no time"
        );
    }
}
