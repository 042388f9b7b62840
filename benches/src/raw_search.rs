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
    name: &'static str,
    client: Bare,
    acquire: Arc<str>,
    release: Arc<str>,
    /// Which part of the document the answer to an acquire contains.
    shown: Value,
    /// Whether each request is a bulk of one.
    bulk: bool,
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
            name: "raw",
            client: client.clone(),
            acquire: ACQUIRE.into(),
            release: RELEASE.into(),
            shown: json!(true),
            bulk: false,
            index: index.into(),
        })
    }

    /// Uses scripts as long as those of leasehold. The additional text is a comment.
    pub async fn with_long_scripts(client: &Bare) -> Result<Self> {
        let as_long = |script: &str, other: &str| {
            let sent = other.lines().map(str::trim);
            let sent = sent.filter(|line| !line.starts_with("//"));
            let long: usize = sent.map(|line| line.len() + 1).sum();
            let rest = long.saturating_sub(script.len());
            format!("{script}/*{}*/", "-".repeat(rest)).into()
        };
        Ok(Self {
            name: "raw, with scripts as long",
            acquire: as_long(
                ACQUIRE,
                include_str!("../../src/store/elasticsearch/acquire.painless"),
            ),
            release: as_long(
                RELEASE,
                include_str!("../../src/store/elasticsearch/release.painless"),
            ),
            ..Self::new(client).await?
        })
    }

    /// Uses a filter, so that the answer contains the document as a refusing script leaves it, instead of the stored
    /// one.
    pub async fn with_filtered_answers(client: &Bare) -> Result<Self> {
        Ok(Self {
            name: "raw, with filtered answers",
            shown: json!({ "includes": ["*"] }),
            ..Self::new(client).await?
        })
    }

    /// Sends each request as a bulk of one.
    pub async fn as_bulk(client: &Bare) -> Result<Self> {
        Ok(Self {
            name: "raw, as a bulk of one",
            bulk: true,
            ..Self::new(client).await?
        })
    }

    pub fn index(&self) -> &str {
        &self.index
    }

    async fn change(&self, key: &str, change: Value) -> Result<Value> {
        if !self.bulk {
            let path = format!("/{}/_update/{key}", self.index);
            return self.client.send(Method::Post, &path, Some(change)).await;
        }
        let action = json!({ "update": { "_id": key } });
        let (path, body) = bulk(&self.index, &action, &change);
        let (_, mut answer) = self.client.ask(Method::Post, &path, Some(body)).await?;
        let item = answer.pointer_mut("/items/0/update").map(Value::take);
        item.with_context(|| format!("{path}: {answer}"))
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
        self.name
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let owner = Uuid::new_v4().to_string();
        let body = json!({
            "script": script(&self.acquire, &json!({ "owner": owner, "ttl": ttl.as_millis() as u64 })),
            "_source": self.shown,
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
        let script = script(&self.locks.release, &json!({ "owner": self.owner }));
        let body = json!({ "script": script });
        let answer = self.locks.change(&self.key, body).await?;
        ensure!(answer["result"] == "updated", "not released: {answer}");
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}
