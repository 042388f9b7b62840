//! Users with a role, on clusters with accounts: what each may do, and how a refusal is told.

use std::time::Duration;

use elasticsearch::http::Method::{Get, Post, Put};
use leasehold::{ElasticsearchStore, Error, Leases, OpenSearchStore, store::LeaseId};
use leasehold_tests::every;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Engine, Fixture, LONG, elasticsearch, errors::everything, leases, opensearch, told::is_told,
};

const SECURED: [Engine; 2] = [Engine::ElasticsearchSecured, Engine::OpenSearchSecured];

/// What a role allows, in the words of each engine.
struct Role {
    /// On the whole cluster.
    cluster: &'static [&'static str],
    /// On the indices and aliases whose names begin with the alias of the locks.
    indices: &'static [&'static str],
}

impl Role {
    /// The role without one privilege, for each that it has.
    fn without_one(&self) -> impl Iterator<Item = (&'static str, [Vec<&'static str>; 2])> {
        let all = self.cluster.iter().chain(self.indices);
        all.map(|missing| {
            let without = |privileges: &[&'static str]| {
                let left = privileges.iter().filter(|other| *other != missing);
                left.copied().collect()
            };
            (*missing, [without(self.cluster), without(self.indices)])
        })
    }
}

/// The roles of `docs/stores/elasticsearch.md`.
struct Roles {
    locks: Role,
    prepares: Role,
    lists: Role,
    only_reads: Role,
}

const ON_ELASTICSEARCH: Roles = Roles {
    locks: Role {
        cluster: &[],
        indices: &["read", "write", "view_index_metadata", "maintenance"],
    },
    prepares: Role {
        cluster: &["cluster:admin/script/put"],
        indices: &["manage"],
    },
    lists: Role {
        cluster: &[],
        indices: &["read", "view_index_metadata", "maintenance"],
    },
    only_reads: Role {
        cluster: &[],
        indices: &["read"],
    },
};

const ON_OPENSEARCH: Roles = Roles {
    locks: Role {
        cluster: &["indices:data/write/bulk", "indices:data/read/mget"],
        indices: &[
            "read",
            "write",
            "indices:admin/get",
            "indices:admin/refresh*",
        ],
    },
    prepares: Role {
        cluster: &["cluster:admin/script/put"],
        indices: &["manage"],
    },
    lists: Role {
        cluster: &["indices:data/write/bulk", "indices:data/read/mget"],
        indices: &["read", "indices:admin/get", "indices:admin/refresh*"],
    },
    only_reads: Role {
        cluster: &["indices:data/write/bulk", "indices:data/read/mget"],
        indices: &["read"],
    },
};

fn roles(engine: Engine) -> Roles {
    match engine {
        Engine::OpenSearchSecured => ON_OPENSEARCH,
        _ => ON_ELASTICSEARCH,
    }
}

/// A store on a cluster of either kind, with stored scripts: the Elasticsearch of these tests forbids others.
#[derive(Clone)]
enum AnyStore {
    Elasticsearch(ElasticsearchStore),
    OpenSearch(OpenSearchStore),
}

impl AnyStore {
    fn at(fixture: &Fixture, url: &str) -> Self {
        let alias = &fixture.alias;
        match fixture.engine {
            Engine::OpenSearchSecured => {
                Self::OpenSearch(OpenSearchStore::new(opensearch(url), alias).stored_scripts())
            }
            _ => Self::Elasticsearch(
                ElasticsearchStore::new(elasticsearch(url), alias).stored_scripts(),
            ),
        }
    }

    async fn prepare(&self) -> Result<(), Error> {
        match self {
            Self::Elasticsearch(store) => store.prepare().await,
            Self::OpenSearch(store) => store.prepare().await,
        }
    }

    async fn check(&self) -> Result<(), Error> {
        match self {
            Self::Elasticsearch(store) => store.check().await,
            Self::OpenSearch(store) => store.check().await,
        }
    }

    fn leases(&self) -> Leases {
        match self.clone() {
            Self::Elasticsearch(store) => leases(store),
            Self::OpenSearch(store) => leases(store),
        }
    }

    /// Every operation, of a handle and of a holder.
    async fn everything(&self) -> every::Outcomes {
        let mut outcomes = every::of_a_handle(&self.leases(), LONG).await;
        outcomes.extend(match self {
            Self::Elasticsearch(store) => every::of_a_holder(store).await,
            Self::OpenSearch(store) => every::of_a_holder(store).await,
        });
        outcomes
    }
}

const PASSWORD: &str = "a-Password-4-tests";

/// After how many milliseconds a purge removes a lock for sure.
const LONG_DEAD: i64 = 2_000;

impl Fixture {
    /// The store of the superuser.
    fn superuser(&self) -> AnyStore {
        AnyStore::at(self, &self.url)
    }

    /// Prepares the cluster, and leaves a lock that a purge removes.
    async fn prepare_with_a_dead_lock(&self) {
        let superuser = self.superuser();
        superuser.prepare().await.unwrap();
        let lease = superuser.leases().acquire("dead", LONG).await.unwrap();
        lease.release().await.unwrap();
    }

    /// Waits until a purge removes the dead lock, on the server's clock.
    async fn until_dead_for_long_enough(&self) {
        let leases = self.superuser().leases();
        loop {
            let dead = leases.inspect("dead").await.unwrap().unwrap();
            if dead.now.timestamp_millis() - dead.fence.get() / 1_024 > LONG_DEAD {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The store of a new user who has only this role.
    async fn user(&self, role: &Role) -> AnyStore {
        self.user_who_may(role.cluster, role.indices).await
    }

    async fn user_who_may(&self, cluster: &[&str], indices: &[&str]) -> AnyStore {
        let name = format!("user-{}", LeaseId::random());
        let locks = format!("{}*", self.alias);
        let (path, role, user) = match self.engine {
            Engine::OpenSearchSecured => (
                [
                    "_plugins/_security/api/roles",
                    "_plugins/_security/api/internalusers",
                ],
                json!({
                    "cluster_permissions": cluster,
                    "index_permissions": [{ "index_patterns": [locks], "allowed_actions": indices }],
                }),
                json!({ "password": PASSWORD, "opendistro_security_roles": [name] }),
            ),
            _ => (
                ["_security/role", "_security/user"],
                json!({
                    "cluster": cluster,
                    "indices": [{ "names": [locks], "privileges": indices }],
                }),
                json!({ "password": PASSWORD, "roles": [name] }),
            ),
        };
        for (path, body) in path.into_iter().zip([role, user]) {
            let mut answer = Value::Null;
            // OpenSearch has all users in one document, and another test may change it at the same time.
            while answer.is_null() || answer["status"] == "CONFLICT" {
                answer = self.ask(Put, &format!("{path}/{name}"), body.clone()).await;
            }
            let is_created = answer["role"]["created"] == true
                || answer["created"] == true
                || answer["status"] == "CREATED";
            assert!(is_created, "{answer}");
        }
        AnyStore::at(self, &format!("http://{name}:{PASSWORD}@{}", self.host()))
    }
}

#[tokio::test]
async fn refused_credentials_are_named_as_such_and_never_shown() {
    for engine in SECURED {
        let fixture = Fixture::secured(engine).await;
        let host = fixture.host();
        let wrong = AnyStore::at(&fixture, &format!("http://elastic:hunter2@{host}"));
        let none = AnyStore::at(&fixture, &format!("http://{host}"));
        for store in [wrong, none] {
            let leases = store.leases();
            let errors = [
                store.prepare().await.unwrap_err(),
                leases.acquire("key", LONG).await.map(drop).unwrap_err(),
                leases.inspect("key").await.map(drop).unwrap_err(),
            ];
            for error in errors {
                assert!(matches!(error, Error::Denied { .. }), "{error:?}");
                assert!(!error.is_retryable());
                assert!(error.to_string().contains("check the user"), "{error}");
                assert!(!everything(&error).contains("hunter2"), "{error:?}");
                is_told(&error, &host);
            }
            let shown = match &store {
                AnyStore::Elasticsearch(store) => format!("{leases:?} {store:?}"),
                AnyStore::OpenSearch(store) => format!("{leases:?} {store:?}"),
            };
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_user_who_may_only_read_is_refused_everything_else_and_changes_nothing() {
    for engine in SECURED {
        let fixture = Fixture::secured(engine).await;
        let superuser = fixture.superuser();
        superuser.prepare().await.unwrap();
        let store = fixture.user(&roles(engine).only_reads).await;
        // A lock, for the operations that read before they write.
        let lease = superuser.leases().acquire("held", LONG).await.unwrap();
        let name = &fixture.alias;
        let documents = async || {
            let refresh = format!("{name}/_refresh");
            fixture.ask(Post, &refresh, Value::Null).await;
            let search = format!("{name}/_search?seq_no_primary_term=true");
            fixture.ask(Get, &search, Value::Null).await["hits"].take()
        };
        let before = documents().await;
        let mut outcomes = store.everything().await;
        outcomes.push(("prepare", store.prepare().await));
        for (operation, outcome) in outcomes {
            match outcome {
                Ok(()) => panic!("{operation} is more than reading, on {engine:?}"),
                Err(error) => {
                    let is_denied = matches!(error, Error::Denied { .. });
                    assert!(is_denied, "{operation} on {engine:?}: {error:?}");
                    assert!(!everything(&error).contains(PASSWORD), "{error:?}");
                    is_told(&error, &fixture.host());
                }
            }
        }
        let after = documents().await;
        assert_eq!(after, before);
        assert_eq!(after["total"]["value"], 1);
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_user_with_the_documented_privileges_may_list_and_change_nothing() {
    for engine in SECURED {
        let fixture = Fixture::secured(engine).await;
        let superuser = fixture.superuser();
        superuser.prepare().await.unwrap();
        let lease = superuser.leases().acquire("held", LONG).await.unwrap();
        let store = fixture.user(&roles(engine).lists).await;
        for (operation, outcome) in store.everything().await {
            // A purge that finds nothing, and a release of all leases of an owner who has none, are searches.
            let only_reads = ["list", "look", "purge", "release_owner"].contains(&operation);
            assert_eq!(
                outcome.is_ok(),
                only_reads,
                "{operation} on {engine:?}: {outcome:?}"
            );
        }
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_user_with_the_documented_privileges_may_do_all_but_prepare() {
    for engine in SECURED {
        let fixture = Fixture::secured(engine).await;
        fixture.prepare_with_a_dead_lock().await;
        fixture.until_dead_for_long_enough().await;
        let store = fixture.user(&roles(engine).locks).await;
        store.check().await.unwrap();
        for (operation, outcome) in store.everything().await {
            outcome.unwrap_or_else(|error| panic!("{operation} on {engine:?}: {error:?}"));
        }
        let dead = store.leases().inspect("dead").await.unwrap();
        assert!(dead.is_none(), "the purge has removed it: {dead:?}");
    }
}

/// Of each privilege that the documentation names, some operation needs it.
#[tokio::test]
async fn a_user_without_one_of_the_documented_privileges_is_refused_something() {
    for engine in SECURED {
        let mut all = Vec::new();
        for lacking in roles(engine).locks.without_one() {
            let fixture = Fixture::secured(engine).await;
            fixture.prepare_with_a_dead_lock().await;
            all.push((fixture, lacking));
        }
        for (fixture, (missing, [cluster, indices])) in all {
            fixture.until_dead_for_long_enough().await;
            let store = fixture.user_who_may(&cluster, &indices).await;
            let mut outcomes = store.everything().await;
            outcomes.push(("check", store.check().await));
            let is_denied = |outcome: &_| matches!(outcome, Err(Error::Denied { .. }));
            let denied = outcomes.iter().filter(|(_, outcome)| is_denied(outcome));
            assert!(denied.count() > 0, "{missing} on {engine:?}: {outcomes:?}");
        }
    }
}

/// Prepares what is not there, and again what is there.
#[tokio::test]
async fn a_user_with_the_documented_privileges_may_prepare() {
    for engine in SECURED {
        let fixture = Fixture::secured(engine).await;
        let store = fixture.user(&roles(engine).prepares).await;
        for _ in 0..2 {
            store.prepare().await.unwrap();
        }
        store.check().await.unwrap();
        let lease = fixture.superuser().leases().acquire("key", LONG).await;
        lease.unwrap().release().await.unwrap();
    }
}
