//! The lower bound on Elasticsearch and OpenSearch: the same kind of lock as on MongoDB, by two scripts that
//! do no more than they must, sent by a bare client. Each is one scripted `_update` of a flat document.
//!
//! Both engines speak the same here, so one client serves both.

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
        let response = self
            .transport
            .send(method, path, HeaderMap::new(), None::<&()>, body, None)
            .await?;
        let status = response.status_code();
        let answer = response.text().await?;
        ensure!(status.is_success(), "{path}: {answer}");
        Ok(serde_json::from_str(&answer)?)
    }
}

#[derive(Clone)]
pub struct RawSearchLocks {
    client: Bare,
    index: Arc<str>,
}

impl RawSearchLocks {
    /// With an index of its own, which has the settings of ours.
    pub async fn new(client: &Bare) -> Result<Self> {
        let index = format!("bench-raw-{}", Uuid::new_v4());
        let settings = json!({
            "settings": { "index": {
                "number_of_shards": 1,
                "auto_expand_replicas": "0-1",
                "translog.durability": "request",
            } },
            "mappings": { "dynamic": "strict", "properties": {
                "fence": { "type": "long" },
                "owner": { "type": "keyword" },
                "expires_at": { "type": "date", "format": "epoch_millis" },
            } },
        });
        client
            .send(Method::Put, &format!("/{index}"), Some(settings))
            .await?;
        Ok(Self {
            client: client.clone(),
            index: index.into(),
        })
    }

    pub fn index(&self) -> &str {
        &self.index
    }

    fn path(&self, key: &str) -> String {
        format!("/{}/_update/{key}", self.index)
    }
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
        let path = self.path(key);
        let answer = self.client.send(Method::Post, &path, Some(body)).await?;
        let lock = &answer["get"]["_source"];
        lock["fence"].as_i64().context("no fence in the answer")?;
        if lock["owner"] != owner {
            return Ok(None);
        }
        Ok(Some(Box::new(RawSearchGuard {
            client: self.client.clone(),
            path,
            owner,
        })))
    }

    async fn acquire(&self, _: &str, _: Duration) -> Result<Box<dyn Guard>> {
        bail!("nobody waits here")
    }
}

struct RawSearchGuard {
    client: Bare,
    path: String,
    owner: String,
}

#[async_trait]
impl Guard for RawSearchGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        let body = json!({ "script": script(RELEASE, &json!({ "owner": self.owner })) });
        let answer = self
            .client
            .send(Method::Post, &self.path, Some(body))
            .await?;
        ensure!(answer["result"] == "updated", "not released: {answer}");
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}
