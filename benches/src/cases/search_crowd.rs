//! Many tasks that share one key, and so change one document at the same time, on Elasticsearch and OpenSearch.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use elasticsearch::http::Method;
use leasehold::{
    Attempt, Key, Leases, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseAnswer, ReleaseRequest},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::search;
use crate::{
    engines::Engine,
    locks::LONG,
    loops::{Loops, Work},
    raw_search::{Bare, bulk},
    results::CaseResult,
    rounds::{Plan, compare},
};

const KEY: &str = "crowd";
const ACQUIRE: &str = "
    if (ctx.op == 'create') {
        ctx._source.holders = [];
    }
    ctx._source.holders.add(params.owner);";
const RELEASE: &str = "
    if (!ctx._source.holders.removeIf(holder -> holder == params.owner)) {
        ctx.op = 'none';
    }";

pub const ABOUT: &str = "Shared acquires of one key, each with its release, by tasks that hold it at the same time. \
    `raw` sends each as an `_update`. The cluster tries it again up to 32 times, and `raw` sends \
    it again after that.";

pub async fn measure(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let url = engine.address().context("no address")?;
    let client = Bare::new(&url)?;
    let index = client
        .create("bench-crowd", json!({ "dynamic": false }))
        .await?;
    let (bare_alias, bare) = search::store(engine, &url).await?;
    let (whole_alias, whole) = search::store(engine, &url).await?;
    let sides: [(&'static str, Work); 4] = [
        ("raw", raw(&client, &index, false)),
        ("raw, as a bulk of one", raw(&client, &index, true)),
        ("leasehold-store", of_store(bare)),
        ("leasehold", of_leases(Leases::new(whole))),
    ];
    let measured = crowds(&mut result, plan, &sides).await;
    for name in [index, bare_alias, whole_alias] {
        search::remove(&client, &name).await?;
    }
    measured.map(|()| result)
}

async fn crowds(result: &mut CaseResult, plan: Plan, sides: &[(&'static str, Work)]) -> Result<()> {
    for tasks in [1, 8, 64] {
        let sides = sides
            .iter()
            .map(|(name, work)| Loops::new(name, "cycles/s", tasks, work.clone()).boxed());
        let figures = compare(plan, &sides.collect::<Vec<_>>()).await?;
        result.add_at(tasks, "tasks", figures);
    }
    Ok(())
}

fn raw(client: &Bare, index: &str, as_bulk: bool) -> Work {
    let (client, index): (Bare, Arc<str>) = (client.clone(), index.into());
    Arc::new(move |_, _| {
        let (client, index) = (client.clone(), index.clone());
        Box::pin(async move {
            let owner = Uuid::new_v4().to_string();
            let script = |source| json!({ "source": source, "params": { "owner": owner } });
            let acquire = json!({
                "script": script(ACQUIRE), "scripted_upsert": true, "upsert": {}, "_source": true,
            });
            let release = json!({ "script": script(RELEASE) });
            for change in [acquire, release] {
                while !changes(&client, &index, as_bulk, &change).await? {}
            }
            Ok(())
        })
    })
}

/// Changes the document. Returns `false` if the last try also failed because of a concurrent change.
async fn changes(client: &Bare, index: &str, as_bulk: bool, change: &Value) -> Result<bool> {
    let (path, body) = if as_bulk {
        let action = json!({ "update": { "_id": KEY, "retry_on_conflict": 32 } });
        bulk(index, &action, change)
    } else {
        let path = format!("/{index}/_update/{KEY}?retry_on_conflict=32");
        (path, change.to_string())
    };
    let (status, answer) = client.ask(Method::Post, &path, Some(body)).await?;
    let item = answer.pointer("/items/0/update");
    let status = item.map_or(Some(status.into()), |item| item["status"].as_u64());
    if status == Some(409) {
        return Ok(false);
    }
    let result = item.unwrap_or(&answer)["result"].as_str();
    ensure!(
        matches!(result, Some("created" | "updated")),
        "{path}: {answer}"
    );
    Ok(true)
}

fn of_store(store: Arc<dyn Store>) -> Work {
    Arc::new(move |_, _| {
        let store = store.clone();
        Box::pin(async move {
            let (key, lease) = (Key::new(KEY)?, LeaseId::random());
            let request = AcquireRequest::exclusive(key.clone(), lease, "bench".into(), LONG);
            let acquired = store.acquire(&request.shared().fresh()).await?;
            ensure!(
                matches!(acquired, AcquireAnswer::Granted(_)),
                "{acquired:?}"
            );
            let released = store.release(&ReleaseRequest::new(key, lease)).await?;
            ensure!(released == ReleaseAnswer::Released, "{released:?}");
            Ok(())
        })
    })
}

fn of_leases(leases: Leases) -> Work {
    Arc::new(move |_, _| {
        let leases = leases.clone();
        Box::pin(async move {
            match leases.try_acquire(KEY, LONG).shared().await? {
                Attempt::Acquired(lease) => Ok(lease.release().await?),
                Attempt::Held(held) => bail!("{held:?}"),
            }
        })
    })
}
