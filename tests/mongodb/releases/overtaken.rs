//! Many releases are one statement, and a read follows it. Here other clients change the documents before the
//! statement, or between it and the read.

use leasehold::{
    Error, Key, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest,
    },
};
use leasehold_tests::{patient, proxy::Proxy};
use mongodb::bson::{DateTime, Document, doc};

use super::super::{Engine, Fixture, LONG};

/// The store of a client behind a proxy, and that of a client without one.
struct Two {
    fixture: Fixture,
    here: MongoStore,
    there: MongoStore,
    proxy: Proxy,
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

impl Two {
    async fn new() -> Self {
        let fixture = Fixture::new(Engine::MongoDbReplicaSet);
        let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
        let options = fixture.options_at(proxy.address, "").await;
        Self {
            here: MongoStore::new::<Document>(&fixture.collection_with(options)),
            there: fixture.store().await,
            fixture,
            proxy,
        }
    }

    /// Takes leases on these keys, and returns their plain releases.
    async fn held<const N: usize>(&self, names: [&str; N]) -> [ReleaseRequest; N] {
        let mut releases = Vec::new();
        for name in names {
            let lease = take(&self.here, name, |ask| ask).await;
            let release = ReleaseRequest::new(key(name), lease);
            releases.push(release.likely_sole().undoable());
        }
        releases.try_into().unwrap()
    }

    /// Releases these leases by one statement, and calls `meanwhile` before the client reads what the statement left.
    async fn release(
        &self,
        releases: &[ReleaseRequest],
        meanwhile: impl AsyncFnOnce(),
    ) -> Vec<Result<ReleaseAnswer, Error>> {
        let gate = self.proxy.hold_the_request("find");
        let requests: Vec<_> = releases
            .iter()
            .cloned()
            .map(BatchRequest::Release)
            .collect();
        let store = self.here.clone();
        let released = tokio::spawn(async move { store.batch(&requests).await.unwrap() });
        gate.reached().await;
        meanwhile().await;
        gate.open();
        let answers = released.await.unwrap().into_iter();
        let answer = |answer| match answer {
            BatchAnswer::Release(answer) => answer,
            other => panic!("{other:?}"),
        };
        answers.map(|it| it.map(answer)).collect()
    }

    /// From now on the server refuses to write documents that do not match this filter.
    async fn validate(&self, filter: Document) {
        let collection = self.fixture.collection().await;
        let database = collection.client().database(super::super::DATABASE);
        let command = doc! { "collMod": collection.name(), "validator": filter };
        database.run_command(command).await.unwrap();
    }

    /// Evicts the holder, and lets another client take the key.
    async fn take_over(&self, name: &str) {
        self.there.evict(&key(name)).await.unwrap();
        take(&self.there, name, |ask| ask).await;
    }
}

async fn take(
    store: &MongoStore,
    name: &str,
    how: impl Fn(AcquireRequest) -> AcquireRequest,
) -> LeaseId {
    let lease = LeaseId::random();
    let ask = how(AcquireRequest::exclusive(
        key(name),
        lease,
        "me".into(),
        LONG,
    ));
    let answer = store.acquire(&ask).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    lease
}

/// A release counts as carried out whatever other clients do with the key, and however many of them: the statement
/// changed as many documents as there were releases.
#[tokio::test]
async fn a_release_counts_whatever_others_make_of_the_key() {
    let two = Two::new().await;
    let names = [
        "shared",
        "passed on",
        "evicted",
        "removed",
        "ours",
        "before",
    ];
    let releases = two.held(names).await;
    two.there.evict(&key("before")).await.unwrap();
    let there = &two.there;
    let answers = two.release(&releases, async || {
        for _ in 0..2 {
            take(there, "shared", AcquireRequest::shared).await;
        }
        let lease = take(there, "passed on", |ask| ask).await;
        let release = ReleaseRequest::new(key("passed on"), lease);
        there.release(&release).await.unwrap();
        there.evict(&key("evicted")).await.unwrap();
        while !there.remove_expired(&key("removed")).await.unwrap() {}
    });
    let answers: Vec<_> = answers.await.into_iter().map(Result::unwrap).collect();
    let mut expected = [ReleaseAnswer::Released; 6];
    expected[5] = ReleaseAnswer::NotHeld;
    assert_eq!(answers, expected, "{names:?}");
}

/// The same if another client took the key before the statement, even shortly before: the answers still say which
/// leases were released.
#[tokio::test]
async fn a_lease_that_was_taken_over_a_moment_ago_is_no_release() {
    let two = Two::new().await;
    let releases = two.held(["ours", "taken over", "gone"]).await;
    two.take_over("taken over").await;
    let there = &two.there;
    there.evict(&key("gone")).await.unwrap();
    while !there.remove_expired(&key("gone")).await.unwrap() {}
    let answers = two.release(&releases, async || {}).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let [released, not] = [ReleaseAnswer::Released, ReleaseAnswer::NotHeld];
    assert_eq!(answers, [released, not, not]);
}

/// One lease was released and another was not, and other clients have both keys now. The client cannot know which one
/// was released, unless one of the others has had its key for longer than the statement can have taken. The grant to
/// that one may have waited for a transaction, and then has a time from before its wait.
#[tokio::test]
async fn what_others_hide_is_unclear_and_no_loss() {
    for seconds_ago in [0, 90, 3_600] {
        let two = Two::new().await;
        let releases = two.held(["ours", "taken over"]).await;
        two.take_over("taken over").await;
        if seconds_ago > 0 {
            let before = DateTime::now().timestamp_millis() - seconds_ago * 1_000;
            let before = DateTime::from_millis(before);
            let collection = two.fixture.collection().await;
            let update = doc! { "$set": { "acquired_at": before } };
            let aged = collection.update_one(doc! { "_id": "taken over" }, update);
            assert_eq!(aged.await.unwrap().modified_count, 1);
        }
        let mut answers = two
            .release(&releases, async || {
                take(&two.there, "ours", |ask| ask).await;
            })
            .await;
        if seconds_ago == 3_600 {
            let answers = answers.into_iter().map(Result::unwrap);
            let expected = [ReleaseAnswer::Released, ReleaseAnswer::NotHeld];
            assert_eq!(answers.collect::<Vec<_>>(), expected);
            continue;
        }
        assert_eq!(answers.len(), 2);
        for answer in answers.drain(..) {
            let error = answer.unwrap_err();
            assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
            assert!(error.is_ambiguous() && error.is_retryable());
        }
    }
}

/// A statement for several documents fails at one of them. Its answer does not count the documents that it changed
/// before.
#[tokio::test]
async fn a_statement_that_fails_midway_makes_no_loss_of_a_release() {
    let two = Two::new().await;
    let releases = two.held(["ours", "refused"]).await;
    let validator =
        doc! { "$or": [{ "_id": { "$ne": "refused" } }, { "lease": { "$exists": true } }] };
    two.validate(validator).await;
    let answers = two
        .release(&releases, async || {
            take(&two.there, "ours", |ask| ask).await;
        })
        .await;
    let errors: Vec<_> = answers.into_iter().map(Result::unwrap_err).collect();
    assert!(errors[0].is_ambiguous(), "{:?}", errors[0]);
    assert!(
        errors[1].to_string().contains("validator"),
        "{:?}",
        errors[1]
    );
}

/// What the callers are told in this case.
#[tokio::test]
async fn a_set_tells_of_the_lease_that_was_lost_and_of_no_other() {
    let two = Two::new().await;
    let leases = patient(two.here.clone());
    let set = leases.acquire_all(["a", "b"], LONG).await.unwrap();
    two.there.evict(&key("b")).await.unwrap();
    let gate = two.proxy.hold_the_request("find");
    let released = tokio::spawn(set.release());
    gate.reached().await;
    for _ in 0..2 {
        take(&two.there, "a", AcquireRequest::shared).await;
    }
    gate.open();
    let error = released.await.unwrap().unwrap_err();
    // The error is that of the first key that has one.
    assert!(
        matches!(&error, Error::Lost { key, .. } if key.as_str() == "b"),
        "{error:?}"
    );

    let set = leases.acquire_all(["c", "d"], LONG).await.unwrap();
    two.take_over("c").await;
    let error = set.release().await.unwrap_err();
    assert!(matches!(&error, Error::Lost { key, .. } if key.as_str() == "c"));
}
