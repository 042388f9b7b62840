//! Documents in Elasticsearch and OpenSearch. Both have the same interface here, so one client serves both if there is
//! no guard.

use anyhow::Result;
use async_trait::async_trait;
use elasticsearch::{
    Elasticsearch,
    http::{Method, headers::HeaderMap, transport::Transport},
};
use leasehold::{Error, Fence, fencing::GuardedIndex};
use opensearch::{OpenSearch, http::transport::Transport as ForOpenSearch};
use serde_json::{Value, json};

use super::{Content, Engine};

/// A write without a guard.
const WRITE: &str = "
    ctx._source.over = ctx._source.writer;
    ctx._source.number = params.number;
    ctx._source.writer = params.writer;";

/// The documents without a guard.
#[derive(Debug)]
pub(super) struct Plain {
    transport: Transport,
    address: String,
    /// The alias of an index.
    alias: String,
}

impl Plain {
    pub(super) fn new(address: &str, alias: String) -> Result<Self> {
        Ok(Self {
            transport: Transport::single_node(address)?,
            address: address.to_owned(),
            alias,
        })
    }

    async fn send(&self, method: Method, path: String, body: Option<Value>) -> Result<Value> {
        let body = body.map(|body| body.to_string());
        let headers = HeaderMap::new();
        let answer = self
            .transport
            .send(method, &path, headers, None::<&()>, body, None)
            .await?;
        let status = answer.status_code();
        let answer = answer.text().await?;
        anyhow::ensure!(status.is_success(), "{path}: {status} {answer}");
        Ok(serde_json::from_str(&answer)?)
    }

    async fn create(&self, id: &str) -> Result<()> {
        let alias = &self.alias;
        if self
            .send(Method::Get, format!("/_alias/{alias}"), None)
            .await
            .is_err()
        {
            // If there are several nodes, the index has a replica.
            let index = json!({
                "settings": { "index": { "number_of_shards": 1, "auto_expand_replicas": "0-1" } },
                "aliases": { alias.as_str(): {} },
            });
            self.send(Method::Put, format!("/{alias}-1"), Some(index))
                .await?;
        }
        let first = serde_json::to_value(Content::default())?;
        self.send(Method::Put, format!("/{alias}/_doc/{id}"), Some(first))
            .await?;
        Ok(())
    }

    async fn read(&self, id: &str) -> Result<Content> {
        let path = format!("/{}/_doc/{id}", self.alias);
        let mut found = self.send(Method::Get, path, None).await?;
        Ok(serde_json::from_value(found["_source"].take())?)
    }

    async fn write(&self, id: &str, content: Content) -> Result<()> {
        let path = format!("/{}/_update/{id}", self.alias);
        let params = json!({ "number": content.number, "writer": content.writer });
        let update = json!({ "script": { "source": WRITE, "params": params } });
        self.send(Method::Post, path, Some(update)).await?;
        Ok(())
    }
}

/// This is a macro because the trait that both clients implement is not public.
macro_rules! engine {
    ($name:ident, $client:ident, $transport:ident) => {
        #[derive(Debug)]
        pub(super) struct $name {
            client: $client,
            plain: Plain,
        }

        impl $name {
            pub(super) fn new(plain: Plain) -> Result<Self> {
                let client = $client::new($transport::single_node(&plain.address)?);
                Ok(Self { client, plain })
            }

            fn guarded(&self, fence: Fence) -> GuardedIndex<$client> {
                GuardedIndex::new(self.client.clone(), &*self.plain.alias, fence)
            }
        }

        #[async_trait]
        impl Engine for $name {
            async fn create(&self, id: &str) -> Result<()> {
                self.plain.create(id).await
            }

            async fn claim(&self, id: &str, fence: Fence) -> Result<Option<Content>, Error> {
                self.guarded(fence).claim(id).await
            }

            async fn write_guarded(
                &self,
                id: &str,
                fence: Fence,
                content: Content,
            ) -> Result<bool, Error> {
                // The writes alternate between the two ways to write.
                if content.number % 2 == 0 {
                    return self.guarded(fence).update(id, &content).await;
                }
                self.guarded(fence).index(id, &content).await?;
                Ok(true)
            }

            async fn read(&self, id: &str) -> Result<Content> {
                self.plain.read(id).await
            }

            async fn write(&self, id: &str, content: Content) -> Result<()> {
                self.plain.write(id, content).await
            }
        }
    };
}

engine!(OnElasticsearch, Elasticsearch, Transport);
engine!(OnOpenSearch, OpenSearch, ForOpenSearch);
