//! The stores on Elasticsearch and OpenSearch, on real engines.

mod answers;
mod at_once;
mod at_work;
mod between_processes;
mod cancel;
mod computing;
mod conformance;
mod delays;
mod documents;
mod errors;
mod evictions;
mod fencing;
mod fuzz;
mod limits;
mod misdirected;
mod model;
mod nonsense;
mod patience;
mod permissions;
mod pipelines;
mod places;
mod prefixed;
mod prepare;
mod protocol;
mod purge;
mod requests;
mod seeds;
mod setups;
mod sharing;
mod templates;
mod timed;
mod told;
mod too_large;
mod turns;
mod waited_for;

use std::{
    sync::{Arc, Once},
    thread,
    time::Duration,
};

use elasticsearch::{
    Elasticsearch,
    http::{
        Method,
        headers::{CONTENT_TYPE, HeaderMap, HeaderValue},
    },
};
use leasehold::{
    ElasticsearchStore, Error, Key, Leases, LeasesBuilder, OpenSearchStore, Store,
    store::{AcquireAnswer, AcquireRequest, Grant, LeaseId, LookRequest},
};
use leasehold_conformance::Clients;
use leasehold_tests::engine::Engine;
use opensearch::OpenSearch;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::patience::{PATIENCE, Patient, until_answered};

/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);
const BOTH: [Engine; 2] = [Engine::Elasticsearch, Engine::OpenSearch];

/// Starts an engine that will be used soon, while the tests of others run.
fn start(engine: Engine) {
    static STARTED: [Once; 3] = [const { Once::new() }; 3];
    let number = match engine {
        Engine::Elasticsearch => 0,
        Engine::OpenSearch => 1,
        _ => 2,
    };
    STARTED[number].call_once(|| {
        // The thread has the name of the test, because the engine's user is counted by that name.
        let test = thread::current().name().unwrap_or("unnamed").to_owned();
        let starting = thread::Builder::new().name(test);
        starting.spawn(move || engine.address()).unwrap();
    });
}

/// A handle that waits for an answer as long as a slow machine needs.
fn leases(store: impl Store) -> Leases {
    builder(store).build()
}

fn builder(store: impl Store) -> LeasesBuilder {
    Leases::builder(Patient(store)).call_timeout(PATIENCE)
}

/// The refusals of a lean acquire, and of one that knows all rules.
async fn refusals(leases: &Leases) -> [Error; 2] {
    let alone = leases.try_acquire("key", LONG).await;
    let shared = leases.try_acquire("key", LONG).shared().await;
    [alone, shared].map(|asked| asked.unwrap_err())
}

/// An alias that no other test uses.
#[derive(Clone)]
struct Fixture {
    engine: Engine,
    url: String,
    alias: String,
}

impl Fixture {
    fn new(engine: Engine) -> Self {
        BOTH.into_iter().for_each(start);
        Self {
            engine,
            url: engine.address(),
            alias: format!("locks-{}", LeaseId::random()),
        }
    }

    /// A fixture on a cluster with accounts. When a first account or role is changed, Elasticsearch
    /// creates an index for them, and meanwhile it knows no user. So a role is changed before
    /// anything else.
    async fn secured(engine: Engine) -> Self {
        static ACCOUNTS: OnceCell<()> = OnceCell::const_new();
        let fixture = Self::new(engine);
        if let Engine::ElasticsearchSecured = engine {
            ACCOUNTS
                .get_or_init(async || {
                    let role = "_security/role/leasehold-test";
                    fixture
                        .ask(Method::Put, role, json!({ "indices": [] }))
                        .await;
                    let health = "_cluster/health/.security?wait_for_status=yellow&timeout=180s";
                    fixture.ask(Method::Get, health, Value::Null).await;
                })
                .await;
        }
        fixture
    }

    /// A fixture whose index is prepared.
    async fn prepared(engine: Engine) -> Self {
        let fixture = Self::new(engine);
        fixture.prepare().await.unwrap();
        fixture
    }

    async fn prepare(&self) -> Result<(), Error> {
        until_answered(async || self.prepare_once().await).await
    }

    async fn prepare_once(&self) -> Result<(), Error> {
        match self.engine {
            Engine::OpenSearch => {
                OpenSearchStore::new(opensearch(&self.url), &self.alias)
                    .prepare()
                    .await
            }
            _ => self.on_elasticsearch().prepare().await,
        }
    }

    async fn check(&self) -> Result<(), Error> {
        match self.engine {
            Engine::OpenSearch => {
                OpenSearchStore::new(opensearch(&self.url), &self.alias)
                    .check()
                    .await
            }
            _ => self.on_elasticsearch().check().await,
        }
    }

    fn on_elasticsearch(&self) -> ElasticsearchStore {
        ElasticsearchStore::new(elasticsearch(&self.url), &self.alias)
    }

    /// A store with a client of its own.
    fn store(&self) -> Arc<dyn Store> {
        self.store_at(&self.url)
    }

    fn store_at(&self, url: &str) -> Arc<dyn Store> {
        Arc::new(Patient(self.bare_store_at(url)))
    }

    /// A store without the retries of these tests, as an application has it.
    fn bare_store_at(&self, url: &str) -> Arc<dyn Store> {
        match self.engine {
            Engine::OpenSearch => Arc::new(OpenSearchStore::new(opensearch(url), &self.alias)),
            _ => Arc::new(ElasticsearchStore::new(elasticsearch(url), &self.alias)),
        }
    }

    /// The index behind the alias.
    fn index(&self) -> String {
        format!("{}-v1", self.alias)
    }

    /// The alias that changes are sent to.
    fn write_alias(&self) -> String {
        format!("{}-write", self.alias)
    }

    /// The host and port of the engine.
    fn host(&self) -> String {
        self.url.rsplit(['/', '@']).next().unwrap().to_owned()
    }

    /// Sends a request to the engine, for what a store does not show.
    async fn ask(&self, method: Method, path: &str, body: Value) -> Value {
        let body = (!body.is_null()).then(|| body.to_string());
        self.ask_with(method, path, HeaderMap::new(), body).await
    }

    /// The same with one JSON value per line.
    async fn ask_lines(&self, path: &str, lines: String) -> Value {
        let mut headers = HeaderMap::new();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-ndjson"),
        );
        self.ask_with(Method::Post, path, headers, Some(lines))
            .await
    }

    async fn ask_with(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Value {
        let client = elasticsearch(&self.url);
        let response = client
            .transport()
            .send(method, path, headers, None::<&()>, body, None)
            .await
            .unwrap();
        response.json().await.unwrap()
    }
}

/// The least mapping with which an index counts as one of locks.
fn least_mapping() -> Value {
    let word = json!({ "type": "keyword" });
    let date = json!({ "type": "date", "format": "epoch_millis" });
    json!({
        "_meta": { "leasehold_schema": 1 },
        "properties": {
            "key": word,
            "schema": word,
            "expires_at": date,
            "released_at": date,
            "owner": word,
            "holders": { "properties": { "owner": word } },
            "limiter": { "type": "long" },
            "over_at": date,
            "window": { "type": "long" },
            "kind": word,
        },
    })
}

/// A request for the key `key`.
fn ask() -> AcquireRequest {
    let key = Key::new("key").unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

/// A look at no lease of this key.
fn look(key: &Key) -> LookRequest {
    LookRequest::new(key.clone(), LeaseId::random())
}

/// The grant of this request. Panics if it is refused.
async fn granted(store: &dyn Store, request: &AcquireRequest) -> Grant {
    match store.acquire(request).await.unwrap() {
        AcquireAnswer::Granted(grant) => grant,
        refused => panic!("{refused:?}"),
    }
}

fn elasticsearch(url: &str) -> Elasticsearch {
    Elasticsearch::new(elasticsearch::http::transport::Transport::single_node(url).unwrap())
}

fn opensearch(url: &str) -> OpenSearch {
    OpenSearch::new(opensearch::http::transport::Transport::single_node(url).unwrap())
}
