//! Users with few rights, with no rights, and with a wrong password, on a server with accounts.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, future::join_all};
use leasehold::{
    Error, Filter, Key, Leases, MongoStore, Store as _,
    store::{AcquireRequest, ConvertRequest, LeaseId, ReleaseRequest, RenewAnswer, RenewRequest},
};
use leasehold_tests::every;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::{ClientOptions, Credential},
};
use tokio::time::timeout;

use super::{DATABASE, Engine, Fixture, LONG, PATIENCE, errors::everything, faults::failing};

const PASSWORD: &str = "hunter2";

/// The options of a client that logs in with this name and password, whether or not such a user exists.
async fn options(fixture: &Fixture, name: &str, password: &str) -> ClientOptions {
    let mut options = fixture.options().await;
    let credential = Credential::builder()
        .username(name.to_owned())
        .password(password.to_owned())
        .source("admin".to_owned())
        .build();
    options.credential = Some(credential);
    options
}

/// The options of a new user with these roles on the database of the tests, and with no other rights.
pub(super) async fn user(fixture: &Fixture, roles: &[&str]) -> ClientOptions {
    let name = format!("user-{}", LeaseId::random());
    let made = doc! { "createUser": &name, "pwd": PASSWORD, "roles": on_the_database(roles) };
    superuser(fixture, made).await;
    options(fixture, &name, PASSWORD).await
}

/// The options of a new user whose role allows only these actions on the collection of the fixture, and
/// `listCollections` on its database if the collection is to be prepared.
async fn user_who_may(fixture: &Fixture, actions: &[&str], prepares: bool) -> ClientOptions {
    let role = format!("role-{}", LeaseId::random());
    let on = |collection: &str| doc! { "db": DATABASE, "collection": collection };
    let mut privileges = vec![doc! { "resource": on(&fixture.name), "actions": actions }];
    if prepares {
        privileges.push(doc! { "resource": on(""), "actions": ["listCollections"] });
    }
    let made = doc! { "createRole": &role, "privileges": privileges, "roles": [] };
    superuser(fixture, made).await;
    let name = format!("user-{}", LeaseId::random());
    let roles = vec![doc! { "role": role, "db": "admin" }];
    let made = doc! { "createUser": &name, "pwd": PASSWORD, "roles": roles };
    superuser(fixture, made).await;
    options(fixture, &name, PASSWORD).await
}

/// The actions that `docs/stores/mongodb.md` names are enough, in both dialects. If one of them is missing, something
/// is refused.
#[tokio::test]
async fn a_role_of_single_actions_is_enough() {
    const WORK: [&str; 4] = ["find", "insert", "update", "remove"];
    for is_classic in [false, true] {
        let fixture = Fixture::new(Engine::MongoDbSecured);
        let store = async |actions: &[&str], prepares| {
            let user = user_who_may(&fixture, actions, prepares).await;
            let store = MongoStore::new(&fixture.collection_with(user));
            match is_classic {
                true => store.without_pipelines(),
                false => store,
            }
        };
        let mut operator = WORK.to_vec();
        operator.extend(["createIndex", "listIndexes"]);
        store(&operator, true).await.prepare().await.unwrap();

        let work = store(&WORK, false).await;
        let mut outcomes = every::of_a_handle(&Leases::new(work.clone()), LONG).await;
        outcomes.extend(every::of_a_holder(&work).await);
        for (operation, outcome) in outcomes {
            let denied = matches!(outcome, Err(Error::Denied { .. }));
            assert!(!denied, "{operation}: {outcome:?}");
        }
        for left_out in WORK {
            let rest: Vec<_> = WORK.into_iter().filter(|it| *it != left_out).collect();
            let store = store(&rest, false).await;
            if is_classic && left_out == "remove" {
                // The store sends a removal only for a document that may be removed, and that is so once the clock has
                // passed the fence.
                let lease = Leases::new(work.clone()).acquire("dead", LONG).await;
                lease.unwrap().release().await.unwrap();
                let leases = Leases::new(store);
                let refused = loop {
                    match leases.remove_expired("dead").await {
                        Ok(false) => {}
                        other => break other,
                    }
                };
                assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
                continue;
            }
            let mut outcomes = every::of_a_handle(&Leases::new(store.clone()), LONG).await;
            outcomes.extend(every::of_a_holder(&store).await);
            let is_denied =
                |it: &(&str, Result<(), Error>)| matches!(it.1, Err(Error::Denied { .. }));
            assert!(outcomes.iter().any(is_denied), "without {left_out}");
        }
        if !is_classic {
            let mut listener = WORK.to_vec();
            listener.push("changeStream");
            let heard = store(&listener, false).await.freed().await;
            assert!(heard.unwrap().is_some());
            let deaf = store(&WORK, false).await.freed().await;
            assert!(matches!(deaf, Err(Error::Denied { .. })));
        }
    }
}

fn on_the_database(roles: &[&str]) -> Vec<Document> {
    let role = |role| doc! { "role": role, "db": DATABASE };
    roles.iter().map(role).collect()
}

async fn superuser(fixture: &Fixture, command: Document) {
    let client = fixture.collection().await.client().clone();
    client.database("admin").run_command(command).await.unwrap();
}

/// Checks that the operation was refused for good, that the error says what to look at, and that it shows no password.
fn assert_denied(fixture: &Fixture, operation: &str, error: &Error) {
    let told = everything(error);
    assert!(
        matches!(error, Error::Denied { .. }),
        "{operation}: {error:?}"
    );
    assert!(!error.is_retryable() && !error.is_ambiguous());
    assert!(error.to_string().contains("check the user"), "{error}");
    let (user, _) = fixture.uri.split_once('@').unwrap();
    let (_, password) = user.rsplit_once(':').unwrap();
    assert!(
        !told.contains(PASSWORD) && !told.contains(password),
        "{operation}: {told}"
    );
}

/// All documents of the collection, and the names of its indexes.
async fn contents(collection: &Collection<Document>) -> (Vec<Document>, Vec<String>) {
    let documents = collection.find(doc! {}).sort(doc! { "_id": 1 });
    let documents = documents.await.unwrap().try_collect().await.unwrap();
    (documents, collection.list_index_names().await.unwrap())
}

#[tokio::test]
async fn refused_credentials_are_named_as_such_and_never_shown() {
    let fixture = Fixture::new(Engine::MongoDbSecured);
    let known = user(&fixture, &["readWrite"]).await.credential.unwrap();
    let wrong = options(&fixture, known.username.as_ref().unwrap(), "hunter2hunter2");
    let unknown = options(&fixture, "somebody", PASSWORD);
    let mut nameless = fixture.options().await;
    nameless.credential = None;
    let roleless = user(&fixture, &[]).await;
    let refused = [wrong.await, unknown.await, nameless, roleless].map(async |options| {
        let store = MongoStore::new(&fixture.collection_with(options));
        let leases = Leases::new(store.clone());
        let mut outcomes = every::of_a_handle(&leases, LONG).await;
        outcomes.extend(every::of_a_holder(&store).await);
        outcomes.push(("prepare", store.prepare().await));
        outcomes.push(("freed", store.freed().await.map(drop)));
        for (operation, outcome) in outcomes {
            assert_denied(&fixture, operation, &outcome.unwrap_err());
        }
        assert!(!format!("{leases:?} {store:?}").contains(PASSWORD));
    });
    join_all(refused).await;
    let database = fixture.collection().await.client().database(DATABASE);
    let collections = database.list_collection_names().await.unwrap();
    assert!(!collections.contains(&fixture.name));
}

#[tokio::test]
async fn a_user_who_may_only_read_is_refused_everything_else_and_changes_nothing() {
    let fixture = Fixture::new(Engine::MongoDbSecured);
    let holder = Leases::builder(fixture.store().await).owner("me").build();
    // These are locks on the keys that the operations use.
    let lease = holder.acquire("key", LONG).await.unwrap();
    let dead = holder.acquire("dead", LONG).await.unwrap();
    dead.release().await.unwrap();
    let limiter = holder.limiter("limiter", 5, LONG);
    limiter.permit().await.unwrap();
    let collection = fixture.collection().await;
    let before = contents(&collection).await;
    assert_eq!((before.0.len(), before.1.len()), (3, 1));

    let reader = user(&fixture, &["read"]).await;
    let store = MongoStore::new(&fixture.collection_with(reader));
    let leases = Leases::new(store.clone());
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders[0].lease, lease.id());
    let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    assert_eq!(listed.len(), 2);

    let mut outcomes = every::of_a_handle(&leases, LONG).await;
    outcomes.extend(every::of_a_holder(&store).await);
    outcomes.push(("prepare", store.prepare().await));
    outcomes.push(("freed", store.freed().await.map(drop)));
    // These are operations with the id of a lease that is held.
    let (key, id) = (lease.key().clone(), lease.id());
    let renewal = RenewRequest::new(key.clone(), id, LONG);
    for many in [1, 2] {
        let renewed = store.renew(&vec![renewal.clone(); many]).await;
        let renewed = renewed.and_then(|answers| answers.into_iter().collect());
        outcomes.push(("renew the lease", renewed.map(|_: Vec<_>| ())));
    }
    let release = store.release(&ReleaseRequest::new(key.clone(), id)).await;
    outcomes.push(("release the lease", release.map(drop)));
    let downgrade = store.convert(&ConvertRequest::downgrade(key, id)).await;
    outcomes.push(("downgrade the lease", downgrade.map(drop)));
    let removed = leases.remove_expired("dead").await;
    outcomes.push(("remove what is dead", removed.map(drop)));
    for (operation, outcome) in outcomes {
        match outcome {
            Ok(()) => assert!(
                ["list", "inspect", "inspect dots", "freed", "look"].contains(&operation),
                "{operation} is more than reading"
            ),
            Err(error) => assert_denied(&fixture, operation, &error),
        }
    }
    assert_eq!(contents(&collection).await, before);
    lease.release().await.unwrap();
}

/// An administrator may take a right away at any time.
#[tokio::test]
async fn a_holder_who_may_no_longer_write_is_told_so() {
    let fixture = Fixture::new(Engine::MongoDbSecured);
    let writer = user(&fixture, &["readWrite"]).await;
    let name = writer.credential.clone().unwrap().username.unwrap();
    let leases = Leases::new(MongoStore::new(&fixture.collection_with(writer)));
    let lease = leases.acquire("key", LONG).await.unwrap();
    lease.renew().await.unwrap();
    let roles = |roles| doc! { "updateUser": &name, "roles": on_the_database(roles) };
    superuser(&fixture, roles(&["read"])).await;
    let collection = fixture.collection().await;
    let before = contents(&collection).await;

    let renewed = timeout(PATIENCE, lease.renew()).await.unwrap();
    assert_denied(&fixture, "renew", &renewed.unwrap_err());
    assert!(lease.is_live(), "nobody else can have it");
    let released = timeout(PATIENCE, lease.release()).await.unwrap();
    assert_denied(&fixture, "release", &released.unwrap_err());
    assert_eq!(contents(&collection).await, before);

    // The same connections work once the right is given back.
    superuser(&fixture, roles(&["readWrite"])).await;
    leases.evict("key").await.unwrap().unwrap();
    let lease = leases.acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
}

/// The documentation asks for this role. The conformance suite runs with it too.
#[tokio::test]
async fn who_may_read_and_write_one_database_may_do_everything() {
    let fixture = Fixture::new(Engine::MongoDbSecured);
    let writer = user(&fixture, &["readWrite"]).await;
    let store = MongoStore::new(&fixture.collection_with(writer.clone()));
    store.prepare().await.unwrap();
    store.prepare().await.unwrap();
    let freed = store.freed().await.unwrap().unwrap();
    let leases = Leases::new(store.clone());
    let lease = leases.acquire("one", LONG).await.unwrap();
    let other = leases.acquire("two", LONG).await.unwrap();
    lease.renew().await.unwrap();
    let renewal = |key: &str, id| RenewRequest::new(Key::new(key).unwrap(), id, LONG);
    let two = [renewal("one", lease.id()), renewal("two", other.id())];
    for answer in store.renew(&two).await.unwrap() {
        assert!(matches!(answer, Ok(RenewAnswer::Renewed(_))), "{answer:?}");
    }
    lease.release().await.unwrap();
    let told = freed.any(async |keys| keys.unwrap().iter().any(|it| it.key.as_str() == "one"));
    assert!(timeout(PATIENCE, told).await.unwrap());

    let mut outcomes = every::of_a_handle(&leases, Duration::ZERO).await;
    outcomes.extend(every::of_a_holder(&store).await);
    for (operation, outcome) in outcomes {
        // Most of the operations fail because they get in each other's way. No error says that a right is missing.
        assert!(
            !matches!(outcome, Err(Error::Denied { .. })),
            "{operation}: {outcome:?}"
        );
    }
    let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    assert!(listed.iter().any(|lock| lock.key.as_str() == "two"));
    other.release().await.unwrap();

    // The role gives no right outside of that database.
    let client = Client::with_options(writer).unwrap();
    let elsewhere = client.database("elsewhere").collection::<Document>("locks");
    let elsewhere = Leases::new(MongoStore::new(&elsewhere));
    let error = elsewhere.try_acquire("key", LONG).await.unwrap_err();
    assert_denied(&fixture, "try_acquire elsewhere", &error);
}

#[tokio::test]
async fn another_retention_takes_one_more_right() {
    let fixture = Fixture::new(Engine::MongoDbSecured);
    let kept = async || {
        let indexes = fixture.collection().await.list_indexes().await.unwrap();
        let indexes: Vec<_> = indexes.try_collect().await.unwrap();
        let options = indexes.into_iter().filter_map(|index| index.options);
        options
            .filter_map(|options| options.expire_after)
            .collect::<Vec<_>>()
    };
    let (day, week) = (Duration::from_secs(86_400), Duration::from_secs(7 * 86_400));
    let writer = user(&fixture, &["readWrite"]).await;
    let store = MongoStore::new(&fixture.collection_with(writer)).retention(day);
    store.prepare().await.unwrap();
    let error = store.retention(week).prepare().await.unwrap_err();
    assert_denied(&fixture, "prepare", &error);
    // The retention of locks is in their documents, so it is not in the index.
    assert_eq!(kept().await, [Duration::ZERO, day]);

    let more = user(&fixture, &["readWrite", "dbAdmin"]).await;
    let store = MongoStore::new(&fixture.collection_with(more)).retention(week);
    store.prepare().await.unwrap();
    assert_eq!(kept().await, [Duration::ZERO, week]);
}

/// A server that shuts down may refuse to authenticate a new connection. That says nothing about the account.
#[tokio::test]
async fn a_login_that_a_server_interrupts_is_no_refusal_of_the_account() {
    for (code, is_passing) in [(11_600, true), (91, true), (18, false)] {
        let fixture = Fixture::new(Engine::MongoDbSecured);
        let fails = doc! { "failCommands": ["saslStart", "saslContinue"], "errorCode": code };
        let (_client, store) = failing(&fixture, 1, fails).await;
        let key = Key::new("key").unwrap();
        let request = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
        let error = store.acquire(&request).await.unwrap_err();
        assert_eq!(error.is_retryable(), is_passing, "{code}: {error:?}");
        assert!(!error.is_ambiguous(), "{code}: {error:?}");
        let is_denied = matches!(error, Error::Denied { .. });
        assert_eq!(is_denied, !is_passing, "{code}: {error:?}");
        if is_passing {
            let lease = Leases::new(store).acquire("key", LONG).await.unwrap();
            lease.release().await.unwrap();
        }
    }
}
