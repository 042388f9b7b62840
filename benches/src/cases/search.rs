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

pub async fn cycle(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let about = "Acquires of a free key, each with its release. Each of the two is one scripted \
                 update. Every key is new.";
    let mut result = CaseResult::new("search-cycle", engine.name(), about);
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

/// The cost of each part of the requests.
pub async fn forms(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let about = "Cycles on new keys and attempts on held keys, by 8 tasks: by the bare client in \
                 several forms, and with the scripts and documents of leasehold.";
    let mut result = CaseResult::new("search-forms", engine.name(), about);
    let indices = Indices::of_forms(engine).await?;
    let measured = async {
        cycles(&mut result, plan, &indices.sides, 8).await?;
        attempts(&mut result, plan, &indices.sides).await
    };
    let measured = measured.await;
    indices.remove().await?;
    measured.map(|()| result)
}

pub async fn held(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let about = "Attempts on a held key, by 8 tasks.";
    let mut result = CaseResult::new("search-held", engine.name(), about);
    let indices = Indices::new(engine).await?;
    let measured = attempts(&mut result, plan, &indices.sides).await;
    indices.remove().await?;
    measured.map(|()| result)
}

/// The sides and their indices.
struct Indices {
    client: Bare,
    names: Vec<String>,
    sides: Vec<SharedLocks>,
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
            sides: vec![
                Arc::new(raw),
                ours::Bare::shared(bare),
                ours::Whole::shared(&Leases::new(whole)),
            ],
        })
    }

    async fn of_forms(engine: Engine) -> Result<Self> {
        let url = engine.address().context("no address")?;
        let client = Bare::new(&url)?;
        let raw = RawSearchLocks::new(&client).await?;
        let filtered = RawSearchLocks::with_filtered_answers(&client).await?;
        let long = RawSearchLocks::with_long_scripts(&client).await?;
        let bulk = RawSearchLocks::as_bulk(&client).await?;
        let (alias, store) = store(engine, &url).await?;
        let forms = [raw, filtered, long, bulk];
        let mut names: Vec<_> = forms.iter().map(|form| form.index().to_owned()).collect();
        names.push(alias);
        let mut sides: Vec<SharedLocks> = Vec::new();
        for form in forms {
            sides.push(Arc::new(form));
        }
        sides.push(ours::Bare::shared(store));
        Ok(Self {
            client,
            names,
            sides,
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
