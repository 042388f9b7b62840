//! Documents that are damaged, of another version or of somebody else, and every operation on each of them.
//!
//! All operations have to judge a document alike: it is a lock for all of them or for none, and what is none is not
//! changed by any.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::TryStreamExt;
use leasehold::{
    Error, Fence, Filter, Key, Leases, Store,
    store::{
        AcquireRequest, BatchRequest, ConvertRequest, KnownGrant, LeaseId, ReleaseRequest,
        RenewRequest, SCHEMA,
    },
};
use serde_json::{Value, json};

/// The key of the document.
pub const KEY: &str = "key";
/// The lease that all operations are about, and that many of the documents name.
const LEASE: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "22222222-2222-4222-8222-222222222222";
const TTL: Duration = Duration::from_secs(600);
/// The field under which a time stands.
const TIME: &str = "seconds from now";

/// How a document is to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is a lock of this version.
    Lock,
    /// It is a lock of another version.
    OtherVersion,
    /// It is none.
    NoLock,
}

impl Verdict {
    fn of(error: &Error) -> Self {
        match error {
            Error::NotALock { .. } => Self::NoLock,
            Error::UnsupportedSchema { .. } => Self::OtherVersion,
            _ => Self::Lock,
        }
    }
}

/// A time, this many seconds from now.
fn at(seconds: i64) -> Value {
    json!({ TIME: seconds })
}

/// The value with its times written as this function does, which is given the seconds from now.
pub fn with_times(value: &Value, time: &impl Fn(i64) -> Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get(TIME).and_then(Value::as_i64) {
            Some(seconds) => time(seconds),
            None => {
                let fields = fields.iter();
                let fields = fields.map(|(name, value)| (name.clone(), with_times(value, time)));
                Value::Object(fields.collect())
            }
        },
        Value::Array(values) => values.iter().map(|value| with_times(value, time)).collect(),
        other => other.clone(),
    }
}

/// A lock that one lease has by itself.
pub fn flat() -> Value {
    json!({
        "key": KEY, "schema": SCHEMA, "fence": 7, "lease": LEASE, "owner": "they",
        "acquired_at": at(-60), "expires_at": at(600),
    })
}

/// A lock with several holders.
pub fn several() -> Value {
    let holder = |lease: &str| {
        json!({
            "lease": lease, "owner": "they", "mode": "shared", "permits": 1, "fence": 7,
            "acquired_at": at(-60), "expires_at": at(600),
        })
    };
    json!({
        "key": KEY, "schema": SCHEMA, "fence": 7, "expires_at": at(600),
        "holders": [holder(LEASE), holder(OTHER)],
    })
}

/// A lock that nobody has.
fn free() -> Value {
    json!({ "key": KEY, "schema": SCHEMA, "fence": 7, "released_at": at(-60) })
}

fn with(mut document: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().into_iter().flatten() {
        document[name] = value.clone();
    }
    document
}

fn without(mut document: Value, field: &str) -> Value {
    if let Some(fields) = document.as_object_mut() {
        fields.remove(field);
    }
    document
}

fn with_first(field: &str, value: Value) -> Value {
    let mut document = several();
    document["holders"][0][field] = value;
    document
}

/// The shapes that every store can have.
pub fn shapes() -> Vec<(Verdict, Value)> {
    use Verdict::{Lock, NoLock, OtherVersion};
    let mut shapes = vec![
        // Of somebody else.
        (NoLock, json!({ "key": KEY })),
        (NoLock, json!({ "key": KEY, "expires_at": at(-60) })),
        (
            NoLock,
            json!({ "key": KEY, "fence": 7, "expires_at": at(600) }),
        ),
        (NoLock, without(flat(), "schema")),
        (NoLock, without(several(), "schema")),
        (NoLock, without(free(), "schema")),
        (NoLock, with(flat(), json!({ "schema": "leasehold" }))),
        (NoLock, with(flat(), json!({ "schema": "" }))),
        (
            NoLock,
            with(free(), json!({ "schema": "LEASEHOLD.LOCK.1" })),
        ),
        // Of another version.
        (
            OtherVersion,
            with(flat(), json!({ "schema": "leasehold.lock.2" })),
        ),
        (
            OtherVersion,
            with(free(), json!({ "schema": "leasehold.lock.10" })),
        ),
        (
            OtherVersion,
            json!({ "key": KEY, "schema": "leasehold.lock.2" }),
        ),
        // A fence that is none, or the last one.
        (NoLock, with(flat(), json!({ "fence": 1_i64 << 53 }))),
        (NoLock, with(free(), json!({ "fence": i64::MAX }))),
        (NoLock, with(several(), json!({ "fence": i64::MAX }))),
        (NoLock, with_first("fence", json!(i64::MAX))),
        // Somebody has the key, and it is not told who.
        (NoLock, with(free(), json!({ "expires_at": at(600) }))),
        (NoLock, without(flat(), "lease")),
        (NoLock, with(flat(), json!({ "lease": "they" }))),
        (NoLock, with(flat(), json!({ "lease": "" }))),
        (
            NoLock,
            with(flat(), json!({ "lease": LEASE.replace('1', "A") })),
        ),
        (
            NoLock,
            with(flat(), json!({ "lease": format!("{LEASE}\n") })),
        ),
        (
            NoLock,
            with(flat(), json!({ "lease": LEASE.replace('-', "") })),
        ),
        (
            NoLock,
            with(flat(), json!({ "lease": LEASE.replace('-', "é") })),
        ),
        (NoLock, with_first("lease", json!("they"))),
        (NoLock, with_first("lease", Value::Null)),
        (NoLock, with_first("mode", json!("intent"))),
        (NoLock, with_first("mode", json!("SHARED"))),
        (NoLock, with_first("mode", Value::Null)),
        (NoLock, with_first("permits", Value::Null)),
        (NoLock, with_first("expires_at", Value::Null)),
        (NoLock, with(several(), json!({ "holders": Value::Null }))),
        // Locks as they are, and with things in them that decide nothing.
        (Lock, flat()),
        (Lock, several()),
        (Lock, free()),
        (Lock, json!({ "key": KEY, "schema": SCHEMA })),
        (Lock, without(flat(), "owner")),
        (Lock, without(flat(), "acquired_at")),
        (Lock, without(without(flat(), "fence"), "owner")),
        (
            Lock,
            with(flat(), json!({ "fence": -7, "note": "nightly" })),
        ),
        (Lock, with(free(), json!({ "released_at": at(600) }))),
        (Lock, without(free(), "released_at")),
        (Lock, with(several(), json!({ "holders": [] }))),
        (Lock, with_first("owner", Value::Null)),
        (Lock, with_first("fence", Value::Null)),
        (Lock, with_first("expires_at", at(-60))),
        (Lock, with_first("permits", json!(-1))),
        // Who had a key whose expiry is past is of no interest.
        (Lock, with(flat(), json!({ "expires_at": at(-1) }))),
        (
            Lock,
            with(flat(), json!({ "expires_at": at(-1), "lease": "they" })),
        ),
        (
            Lock,
            with(
                with_first("mode", json!("intent")),
                json!({ "expires_at": at(-1) }),
            ),
        ),
        (Lock, with(free(), json!({ "expires_at": at(-1) }))),
    ];
    // Both forms: then it is the lease that counts.
    let holders = several()["holders"].clone();
    shapes.push((Lock, with(flat(), json!({ "holders": holders }))));
    shapes
}

/// The shapes that only a store can have which does not check the types of fields.
pub fn untyped_shapes() -> Vec<(Verdict, Value)> {
    use Verdict::{Lock, NoLock};
    let mut shapes = Vec::new();
    for nonsense in [json!("7"), json!(true), json!([7]), json!({ "a": 7 })] {
        for field in ["schema", "fence", "expires_at"] {
            for document in [flat(), several(), free()] {
                shapes.push((NoLock, with(document, json!({ field: nonsense }))));
            }
        }
        shapes.push((NoLock, with(flat(), json!({ "lease": nonsense }))));
        shapes.push((NoLock, with(several(), json!({ "holders": [nonsense] }))));
        for field in ["lease", "mode", "permits", "fence", "expires_at"] {
            shapes.push((NoLock, with_first(field, nonsense.clone())));
        }
        for field in ["acquired_at", "note"] {
            shapes.push((Lock, with(flat(), json!({ field: nonsense }))));
            shapes.push((Lock, with_first(field, nonsense.clone())));
        }
        shapes.push((Lock, with(free(), json!({ "released_at": nonsense }))));
    }
    for number in [json!(1), json!(1.0)] {
        shapes.push((NoLock, with(flat(), json!({ "schema": number }))));
    }
    for nonsense in [json!(7), json!(true), json!({})] {
        shapes.push((Lock, with(flat(), json!({ "owner": nonsense }))));
        shapes.push((NoLock, with(several(), json!({ "holders": nonsense }))));
    }
    for fence in [json!(7.0), json!(7.5), json!(-1e300), json!(6e15)] {
        shapes.push((Lock, with(flat(), json!({ "fence": fence }))));
        shapes.push((Lock, with(free(), json!({ "fence": fence }))));
    }
    shapes.push((NoLock, with(free(), json!({ "fence": 1e300 }))));
    shapes.push((NoLock, with_first("permits", json!(1.5))));
    shapes
}

/// Puts each of the documents, and has every operation judge it.
///
/// `put` and `get` write and read the document of [`KEY`].
pub async fn are_judged_alike<D: Clone + Debug + PartialEq>(
    store: &Arc<dyn Store>,
    shapes: Vec<(Verdict, D)>,
    put: impl AsyncFn(&D),
    get: impl AsyncFn() -> Option<D>,
) {
    for (verdict, document) in shapes {
        for operation in OPERATIONS {
            put(&document).await;
            let found = get().await;
            let outcome = carried_out(store, operation).await;
            let judged = outcome.as_ref().err().map_or(Verdict::Lock, Verdict::of);
            assert_eq!(judged, verdict, "{operation} of {document:?}: {outcome:?}");
            if verdict != Verdict::Lock {
                assert_eq!(get().await, found, "{operation} has changed {document:?}");
            } else if let Err(error) = outcome {
                panic!("{operation} of {document:?}: {error:?}");
            }
        }
        put(&document).await;
        let found = get().await;
        if verdict != Verdict::Lock {
            let leases = Leases::new(store.clone());
            assert_eq!(
                leases.purge(Duration::ZERO).await.unwrap(),
                0,
                "{document:?}"
            );
            let listed: Vec<_> = leases
                .list(Filter::new().prefix(KEY))
                .try_collect()
                .await
                .unwrap();
            assert_eq!(listed, [], "{document:?}");
            assert_eq!(get().await, found, "it was purged or listed");
        }
    }
}

const OPERATIONS: [&str; 23] = [
    "try_acquire",
    "acquire",
    "shared",
    "permits",
    "reentrant",
    "reentrant shared",
    "reentrant permits",
    "hand-over",
    "hand-over to shared",
    "acquire again",
    "batch of acquires",
    "renew",
    "renew two",
    "renew what is known",
    "upgrade",
    "downgrade",
    "release",
    "release alone",
    "release holding",
    "batch of releases",
    "inspect",
    "evict",
    "remove_expired",
];

async fn carried_out(store: &Arc<dyn Store>, operation: &str) -> Result<(), Error> {
    let leases = Leases::new(store.clone());
    let key = Key::new(KEY)?;
    let [lease, other] = [LEASE, OTHER].map(|text| LeaseId::parse(text).unwrap());
    let ask = || AcquireRequest::exclusive(key.clone(), LeaseId::random(), "they".into(), TTL);
    let request = match operation {
        "shared" => Some(ask().shared()),
        "permits" => Some(ask().permits(1, 4)),
        "reentrant" => Some(ask().reentrant()),
        "reentrant shared" => Some(ask().shared().reentrant()),
        "reentrant permits" => Some(ask().permits(1, 4).reentrant()),
        "hand-over" => Some(ask().in_place_of(lease).fresh()),
        "hand-over to shared" => Some(ask().shared().in_place_of(lease)),
        "acquire again" => Some(ask()),
        _ => None,
    };
    if let Some(request) = request {
        return store.acquire(&request).await.map(drop);
    }
    let renewal = RenewRequest::new(key.clone(), lease, TTL);
    let acquired_at = "2026-01-01T12:00:00Z".parse().unwrap();
    let fence = Fence::new(7);
    let known = |renewal: RenewRequest| renewal.known(KnownGrant { fence, acquired_at });
    let none = Key::new("none")?;
    let companion = RenewRequest::new(none.clone(), other, TTL);
    let release = ReleaseRequest::new(key.clone(), lease);
    match operation {
        "try_acquire" => leases.try_acquire(&key, TTL).await.map(drop),
        "acquire" => match leases.acquire(&key, TTL).wait_for(Duration::ZERO).await {
            Err(Error::WaitTimedOut { .. }) => Ok(()),
            answer => answer.map(drop),
        },
        "batch of acquires" => {
            let mut companion = ask().shared();
            companion.key = none;
            let requests = [ask(), companion].map(|it| BatchRequest::Acquire(Arc::new(it)));
            store.batch(&requests).await?.remove(0).map(drop)
        }
        "renew" => store.renew(&[renewal]).await?.remove(0).map(drop),
        "renew two" => store
            .renew(&[renewal, companion])
            .await?
            .remove(0)
            .map(drop),
        "renew what is known" => {
            let renewals = [renewal, companion].map(known);
            store.renew(&renewals).await?.remove(0).map(drop)
        }
        "upgrade" => store
            .convert(&ConvertRequest::upgrade(key, lease))
            .await
            .map(drop),
        "downgrade" => store
            .convert(&ConvertRequest::downgrade(key, lease))
            .await
            .map(drop),
        "release" => store.release(&release).await.map(drop),
        "release alone" => store.release(&release.alone()).await.map(drop),
        "release holding" => {
            let release = release.min_hold(TTL * 2, LeaseId::random());
            store.release(&release).await.map(drop)
        }
        "batch of releases" => {
            let companion = ReleaseRequest::new(none, other);
            let requests = [release.alone(), companion].map(BatchRequest::Release);
            store.batch(&requests).await?.remove(0).map(drop)
        }
        "inspect" => store.inspect(&key).await.map(drop),
        "evict" => store.evict(&key).await.map(drop),
        "remove_expired" => store.remove_expired(&key).await.map(drop),
        other => panic!("{other}"),
    }
}
