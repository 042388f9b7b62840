//! Acquires, releases and attempts on held keys, on Elasticsearch and OpenSearch.

use std::sync::Arc;

use anyhow::{Context, Result};
use elasticsearch::http::{Method, transport::Transport};
use leasehold::{ElasticsearchStore, Leases, OpenSearchStore, Store};
use uuid::Uuid;

use super::held::attempts;
use crate::{
    engines::Engine,
    locks::SharedLocks,
    loops::Loops,
    ours,
    raw_search::{Bare, RawSearchLocks},
    results::CaseResult,
    rounds::{Plan, compare},
};

pub const CYCLE: &str = "Acquires of a free key, each with its release. Each of the two is one scripted update. Every \
    key is new.";

pub async fn cycle(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for tasks in [1, 8, 64] {
        let indices = Indices::new(engine).await?;
        let measured = cycles(&mut result, plan, &indices.sides, tasks).await;
        indices.remove().await?;
        measured?;
    }
    Ok(result)
}

async fn cycles(
    result: &mut CaseResult,
    plan: Plan,
    sides: &[SharedLocks],
    tasks: usize,
) -> Result<()> {
    let sides = sides.iter().map(|locks| Loops::fresh(locks, tasks).boxed());
    let figures = compare(plan, &sides.collect::<Vec<_>>()).await?;
    result.add_at(tasks, "tasks", figures);
    Ok(())
}

pub const HELD: &str =
    "Attempts on a held key, by 8 tasks. Another handle holds the keys of `leasehold`.";

pub async fn held(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let indices = Indices::new(engine).await?;
    let measured = attempts(&mut result, plan, &indices.sides, &indices.holder).await;
    indices.remove().await?;
    measured.map(|()| result)
}

/// The sides and their indices.
struct Indices {
    client: Bare,
    names: Vec<String>,
    sides: Vec<SharedLocks>,
    /// Another client of the index of the last side.
    holder: SharedLocks,
}

impl Indices {
    async fn new(engine: Engine) -> Result<Self> {
        let url = engine.address().context("no address")?;
        let client = Bare::new(&url)?;
        let raw = RawSearchLocks::new(&client).await?;
        let (bare_alias, bare) = store(engine, &url).await?;
        let (whole_alias, whole) = store(engine, &url).await?;
        Ok(Self {
            names: vec![raw.index().to_owned(), bare_alias, whole_alias],
            client,
            holder: ours::Bare::shared(whole.clone()),
            sides: vec![
                Arc::new(raw),
                ours::Bare::shared(bare),
                ours::Whole::shared(&Leases::new(whole)),
            ],
        })
    }

    async fn remove(&self) -> Result<()> {
        for name in &self.names {
            remove(&self.client, name).await?;
        }
        Ok(())
    }
}

/// Removes an index, or the index behind an alias.
pub async fn remove(client: &Bare, name: &str) -> Result<()> {
    // An index cannot be deleted through its alias, so this looks up its own name.
    let found = client.send(Method::Get, &format!("/{name}"), None).await?;
    let indices = found.as_object().context("no list of indices")?;
    for index in indices.keys() {
        client
            .send(Method::Delete, &format!("/{index}"), None)
            .await?;
    }
    Ok(())
}

/// Creates a store with its own index. Returns the alias too.
pub async fn store(engine: Engine, url: &str) -> Result<(String, Arc<dyn Store>)> {
    let alias = format!("bench-{}", Uuid::new_v4());
    let store: Arc<dyn Store> = match engine {
        Engine::Opensearch => {
            let transport = opensearch::http::transport::Transport::single_node(url)?;
            let store = OpenSearchStore::new(opensearch::OpenSearch::new(transport), &alias);
            store.prepare().await?;
            Arc::new(store)
        }
        _ => {
            let client = elasticsearch::Elasticsearch::new(Transport::single_node(url)?);
            let store = ElasticsearchStore::new(client, &alias);
            store.prepare().await?;
            Arc::new(store)
        }
    };
    Ok((alias, store))
}
