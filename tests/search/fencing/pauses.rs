//! Documents under the fences of two processes, of which one is paused.

use async_trait::async_trait;
use elasticsearch::{
    Elasticsearch,
    http::{
        Method::{self, Get, Post, Put},
        headers::HeaderMap,
    },
};
use leasehold::{Error, Fence, fencing::GuardedIndex};
use leasehold_tests::processes::fencing;
use opensearch::OpenSearch;
use serde_json::{Value, json};

use super::{
    super::{Engine, Fixture, elasticsearch, opensearch},
    Guard,
};

/// The documents beside the locks of a fixture. One client sends all requests: to make one takes longer than a request.
pub struct Beside {
    engine: Engine,
    index: String,
    elasticsearch: Elasticsearch,
    opensearch: OpenSearch,
}

impl Beside {
    pub fn of(locks: &Fixture) -> Self {
        Self {
            engine: locks.engine,
            index: format!("{}-documents", locks.alias),
            elasticsearch: elasticsearch(&locks.url),
            opensearch: opensearch(&locks.url),
        }
    }

    fn guard(&self, fence: Fence) -> Guard {
        let index = &*self.index;
        match self.engine {
            Engine::OpenSearch => {
                let client = self.opensearch.clone();
                Guard::OpenSearch(GuardedIndex::new(client, index, fence))
            }
            _ => {
                let client = self.elasticsearch.clone();
                Guard::Elasticsearch(GuardedIndex::new(client, index, fence))
            }
        }
    }

    /// Sends a request to the engine. This client works with both engines.
    async fn ask(&self, method: Method, api: &str, id: &str, body: Value) -> Value {
        let path = format!("{}/{api}/{id}", self.index);
        let body = (!body.is_null()).then(|| body.to_string());
        let transport = self.elasticsearch.transport();
        let answer = transport
            .send(method, &path, HeaderMap::new(), None::<&()>, body, None)
            .await
            .unwrap();
        let answer: Value = answer.json().await.unwrap();
        assert!(answer["error"].is_null(), "{answer}");
        answer
    }
}

#[async_trait]
impl fencing::Documents for Beside {
    async fn create(&self, id: &str) {
        self.ask(Put, "_doc", id, json!({ "number": 0 })).await;
    }

    async fn read(&self, id: &str, fence: Option<Fence>) -> Result<u64, Error> {
        let document = match fence {
            Some(fence) => self.guard(fence).claim(id).await?.unwrap(),
            None => self.ask(Get, "_doc", id, Value::Null).await["_source"].take(),
        };
        Ok(document["number"].as_u64().unwrap())
    }

    async fn write(
        &self,
        id: &str,
        number: u64,
        by: &str,
        fence: Option<Fence>,
    ) -> Result<(), Error> {
        let document = json!({ "number": number, "by": by });
        match fence {
            Some(fence) => assert!(self.guard(fence).update(id, &document).await?),
            None => drop(
                self.ask(Post, "_update", id, json!({ "doc": document }))
                    .await,
            ),
        }
        Ok(())
    }

    async fn writer(&self, id: &str) -> String {
        let document = self.ask(Get, "_doc", id, Value::Null).await;
        document["_source"]["by"].as_str().unwrap().to_owned()
    }
}
