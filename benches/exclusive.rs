//! What the kinds of leases cost the plain one: an exclusive acquire and its release, beside the same
//! two requests as they were before there were other kinds, in the same run on the same engine.
//!
//! ```text
//! scripts/with-engines mongodb,elasticsearch,opensearch -- cargo bench --bench exclusive
//! ```
//!
//! Both sides take turns of short rounds, so that whatever else the machine does meets both. The figure
//! is the median over the rounds of how many times as long a cycle takes now.
//!
//! On MongoDB, where the commands are the same as before, it is our whole client beside the bare driver.
//! On Elasticsearch and OpenSearch both sides send scripts through the same bare client, so that the
//! figure is that of the scripts.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use elasticsearch::{
    Elasticsearch,
    http::{Method, headers::HeaderMap, transport::Transport},
};
use futures::future::BoxFuture;
use leasehold::{
    AcquireAnswer, AcquireRequest, ElasticsearchStore, Key, LeaseId, MongoStore, OpenSearchStore,
    ReleaseRequest, Store,
};
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::{ReturnDocument, WriteConcern},
};
use opensearch::OpenSearch;
use serde_json::json;
use tokio::time::Instant;

const ROUNDS: usize = 31;
const CYCLES: usize = 100;
const TTL: Duration = Duration::from_secs(600);

/// One acquire and release.
type Cycle = Box<dyn Fn(String, LeaseId) -> BoxFuture<'static, Result<()>>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut measured = false;
    if let Ok(uri) = env::var("MONGODB_URI") {
        let client = Client::with_uri_str(uri).await?;
        let locks = client.database("leasehold_bench").collection("exclusive");
        let store = MongoStore::new(&locks);
        store.prepare().await?;
        compare("MongoDB", through(Arc::new(store)), mongodb_before(locks)).await?;
        measured = true;
    }
    if let Ok(url) = env::var("ELASTICSEARCH_URL") {
        let alias = format!("bench-{}", LeaseId::random());
        let client = Elasticsearch::new(Transport::single_node(&url)?);
        let store = ElasticsearchStore::new(client, &alias);
        store.prepare().await?;
        compare_scripts("Elasticsearch", &url, &alias).await?;
        measured = true;
    }
    if let Ok(url) = env::var("OPENSEARCH_URL") {
        let alias = format!("bench-{}", LeaseId::random());
        let transport = opensearch::http::transport::Transport::single_node(&url)?;
        let store = OpenSearchStore::new(OpenSearch::new(transport), &alias);
        store.prepare().await?;
        compare_scripts("OpenSearch", &url, &alias).await?;
        measured = true;
    }
    ensure!(measured, "no engine: see the first lines of this file");
    Ok(())
}

async fn compare_scripts(name: &str, url: &str, alias: &str) -> Result<()> {
    let now = scripts(
        url,
        alias,
        include_str!("../src/store/elasticsearch/acquire.painless"),
        include_str!("../src/store/elasticsearch/release.painless"),
    )?;
    let before = scripts(
        url,
        alias,
        include_str!("exclusive/acquire_before.painless"),
        include_str!("exclusive/release_before.painless"),
    )?;
    compare(name, now, before).await
}

/// The store as an application has it.
fn through(store: Arc<dyn Store>) -> Cycle {
    Box::new(move |key, lease| {
        let store = store.clone();
        Box::pin(async move {
            let (key, owner) = (Key::new(key)?, "bench".into());
            let request = AcquireRequest::exclusive(key.clone(), lease, owner, TTL);
            let answer = store.acquire(&request).await?;
            ensure!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
            store.release(&ReleaseRequest::new(key, lease)).await?;
            Ok(())
        })
    })
}

async fn compare(name: &str, now: Cycle, before: Cycle) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 0..ROUNDS + 1 {
        // Each key is new, so that both sides insert, and take over nothing.
        let now = time(&now).await?;
        let then = time(&before).await?;
        // The first round warms up.
        if round > 0 {
            ratios.push(now.as_secs_f64() / then.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios.get(ROUNDS * part / 4).copied().unwrap_or(f64::NAN);
    println!(
        "{name}: a cycle takes {:.3} times as long as before (half of the rounds: {:.3} to {:.3})",
        at(2),
        at(1),
        at(3)
    );
    Ok(())
}

async fn time(cycle: &Cycle) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..CYCLES {
        let lease = LeaseId::random();
        cycle(format!("bench {lease}"), lease).await?;
    }
    Ok(start.elapsed())
}

fn mongodb_before(locks: Collection<Document>) -> Cycle {
    let majority = WriteConcern::majority();
    Box::new(move |key, lease| {
        let (locks, majority) = (locks.clone(), majority.clone());
        Box::pin(async move {
            let granted = locks
                .find_one_and_update(doc! { "_id": &key }, mongodb_acquire(&key, lease))
                .upsert(true)
                .projection(doc! {
                    "schema": 1, "fence": 1, "holders": 1, "expires_at": 1, "now": "$$NOW",
                })
                .return_document(ReturnDocument::After)
                .write_concern(majority.clone())
                .await?;
            granted.context("no document")?;
            let released = locks
                .update_one(doc! { "_id": &key }, mongodb_release(lease))
                .write_concern(majority)
                .await?;
            ensure!(released.modified_count == 1, "not released");
            Ok(())
        })
    })
}

fn is_ours() -> Document {
    doc! { "$and": [
        { "$eq": ["$schema", 1_i64] },
        { "$isArray": "$holders" },
        { "$eq": [{ "$type": "$expires_at" }, "date"] },
        { "$in": [{ "$type": "$fence" }, ["long", "int"]] },
    ] }
}

fn mongodb_acquire(key: &str, lease: LeaseId) -> Vec<Document> {
    let fence = doc! { "$max": [{ "$add": ["$fence", 1_i64] }, { "$toLong": "$$NOW" }] };
    let expires_at = doc! { "$add": ["$$NOW", TTL.as_millis() as i64] };
    let free = doc! { "$and": [
        { "$lte": ["$expires_at", "$$NOW"] },
        { "$or": [is_ours(), { "$eq": ["$$ROOT", { "_id": { "$literal": key } }] }] },
    ] };
    let granted = doc! {
        "_id": "$_id",
        "schema": 1_i64,
        "fence": fence.clone(),
        "holders": [{
            "lease": lease.to_string(),
            "owner": { "$literal": "bench" },
            "mode": "exclusive",
            "permits": 1_i64,
            "fence": fence,
            "acquired_at": "$$NOW",
            "expires_at": expires_at.clone(),
        }],
        "expires_at": expires_at,
    };
    vec![doc! { "$replaceWith": { "$cond": [free, granted, "$$ROOT"] } }]
}

fn mongodb_release(lease: LeaseId) -> Vec<Document> {
    let lease = lease.to_string();
    let holds = doc! { "$and": [is_ours(), { "$in": [&lease, "$holders.lease"] }] };
    let others = doc! { "$filter": {
        "input": "$holders",
        "cond": { "$not": [{ "$eq": ["$$this.lease", &lease] }] },
    } };
    let released = doc! { "$let": {
        "vars": { "holders": others },
        "in": { "$mergeObjects": ["$$ROOT", {
            "holders": "$$holders",
            "expires_at": { "$ifNull": [{ "$max": "$$holders.expires_at" }, "$$NOW"] },
        }] },
    } };
    vec![doc! { "$replaceWith": { "$cond": [holds, released, "$$ROOT"] } }]
}

/// These scripts, through the one client that speaks to both.
fn scripts(
    url: &str,
    alias: &str,
    acquire_script: &'static str,
    release_script: &'static str,
) -> Result<Cycle> {
    let client = Elasticsearch::new(Transport::single_node(url)?);
    let alias = alias.to_owned();
    Ok(Box::new(move |key, lease| {
        let (client, path) = (client.clone(), format!("/{alias}/_update/{}", lease));
        Box::pin(async move {
            let lease = lease.to_string();
            let acquire = json!({
                "script": {
                    "lang": "painless",
                    "source": acquire_script,
                    "params": {
                        "schema": 1, "key": key, "lease": &lease, "owner": "bench",
                        "ttl": TTL.as_millis() as u64,
                        // What the scripts of before have no use for.
                        "mode": "exclusive", "permits": 1, "capacity": 1, "reentrant": false,
                        "note": null,
                    },
                },
                "_source": { "includes": ["*"] },
                "scripted_upsert": true,
                "upsert": {},
            });
            let release = json!({
                "script": {
                    "lang": "painless",
                    "source": release_script,
                    "params": {
                        "schema": 1, "lease": &lease, "min_hold": null, "under": null,
                    },
                },
                "_source": { "includes": ["*"] },
            });
            for body in [acquire, release] {
                let query = [
                    ("require_alias", "true"),
                    ("retry_on_conflict", "32"),
                    ("timeout", "5s"),
                ];
                let body = Some(body.to_string());
                let response = client
                    .transport()
                    .send(
                        Method::Post,
                        &path,
                        HeaderMap::new(),
                        Some(&query),
                        body,
                        None,
                    )
                    .await?;
                let status = response.status_code();
                let answer = response.text().await?;
                ensure!(status.is_success(), "{answer}");
            }
            Ok(())
        })
    }))
}
