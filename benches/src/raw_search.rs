//! The lower bound on Elasticsearch and OpenSearch: the same kind of lock as on MongoDB, with two minimal scripts,
//! which a bare client sends. Each operation is one scripted update of a flat document.
//!
//! Both engines have the same interface here, so one client serves both.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use elasticsearch::http::{Method, headers::HeaderMap, transport::Transport};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::locks::{Guard, Locks};

const ACQUIRE: &str = "
    long now = new Date().getTime();
    def lock = ctx._source;
    if (ctx.op == 'create') {
        lock.fence = 1L;
        lock.owner = params.owner;
        lock.expires_at = now + params.ttl;
    } else if (lock.expires_at <= now) {
        lock.fence = lock.fence + 1L;
        lock.owner = params.owner;
        lock.expires_at = now + params.ttl;
    } else {
        ctx.op = 'none';
    }";

const RELEASE: &str = "
    if (ctx._source.owner == params.owner) {
        ctx._source.remove('owner');
        ctx._source.expires_at = new Date().getTime();
    } else {
        ctx.op = 'none';
    }";

/// A client that sends JSON.
#[derive(Clone)]
pub struct Bare {
    transport: Transport,
}

impl Bare {
    pub fn new(url: &str) -> Result<Self> {
        let transport = Transport::single_node(url)?;
        Ok(Self { transport })
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let body = body.map(|body| body.to_string());
        let (status, answer) = self.ask(method, path, body).await?;
        ensure!((200..300).contains(&status), "{path}: {answer}");
        Ok(answer)
    }

    /// Creates an index with the settings of leasehold's indices, and returns its name.
    pub async fn create(&self, prefix: &str, mappings: Value) -> Result<String> {
        let index = format!("{prefix}-{}", Uuid::new_v4());
        let settings = json!({ "index": {
            "number_of_shards": 1,
            "auto_expand_replicas": "0-1",
            "translog.durability": "request",
        } });
        let body = json!({ "settings": settings, "mappings": mappings });
        self.send(Method::Put, &format!("/{index}"), Some(body))
            .await?;
        Ok(index)
    }

    /// Sends a request, and returns the answer, whatever its status.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(u16, Value)> {
        let response = self
            .transport
            .send(method, path, HeaderMap::new(), None::<&()>, body, None)
            .await?;
        let status = response.status_code().as_u16();
        let answer = response.text().await?;
        let answer = serde_json::from_str(&answer).with_context(|| format!("{path}: {answer}"))?;
        Ok((status, answer))
    }
}

#[derive(Clone)]
pub struct RawSearchLocks {
    client: Bare,
    index: Arc<str>,
}

impl RawSearchLocks {
    /// Uses a new index.
    pub async fn new(client: &Bare) -> Result<Self> {
        let mappings = json!({ "dynamic": "strict", "properties": {
            "fence": { "type": "long" },
            "owner": { "type": "keyword" },
            "expires_at": { "type": "date", "format": "epoch_millis" },
        } });
        let index = client.create("bench-raw", mappings).await?;
        Ok(Self {
            client: client.clone(),
            index: index.into(),
        })
    }

    pub fn index(&self) -> &str {
        &self.index
    }

    async fn change(&self, key: &str, change: Value) -> Result<Value> {
        let path = format!("/{}/_update/{key}", self.index);
        self.client.send(Method::Post, &path, Some(change)).await
    }
}

/// The path and the body of a bulk of one.
pub fn bulk(index: &str, action: &Value, change: &Value) -> (String, String) {
    let path = format!("/{index}/_bulk");
    (path, format!("{action}\n{change}\n"))
}

fn script(source: &str, params: &Value) -> Value {
    json!({ "lang": "painless", "source": source, "params": params })
}

#[async_trait]
impl Locks for RawSearchLocks {
    fn name(&self) -> &'static str {
        "raw"
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let owner = Uuid::new_v4().to_string();
        let body = json!({
            "script": script(ACQUIRE, &json!({ "owner": owner, "ttl": ttl.as_millis() as u64 })),
            "_source": true,
            "scripted_upsert": true,
            "upsert": {},
        });
        let answer = self.change(key, body).await?;
        let lock = &answer["get"]["_source"];
        lock["fence"].as_i64().context("no fence in the answer")?;
        if lock["owner"] != owner {
            return Ok(None);
        }
        Ok(Some(Box::new(RawSearchGuard {
            locks: self.clone(),
            key: key.to_owned(),
            owner,
        })))
    }

    async fn acquire(&self, _: &str, _: Duration) -> Result<Box<dyn Guard>> {
        bail!("nobody waits here")
    }
}

struct RawSearchGuard {
    locks: RawSearchLocks,
    key: String,
    owner: String,
}

#[async_trait]
impl Guard for RawSearchGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        let script = script(RELEASE, &json!({ "owner": self.owner }));
        let body = json!({ "script": script });
        let answer = self.locks.change(&self.key, body).await?;
        ensure!(answer["result"] == "updated", "not released: {answer}");
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}
