//! Documents under the fences of two processes, one of which is paused.

use async_trait::async_trait;
use elasticsearch::http::Method::Post;
use leasehold::{Error, Fence};
use serde_json::{Value, json};

use super::{super::common::processes::fencing, Documents, Fixture};

impl Documents {
    /// Those beside the locks of a fixture.
    pub fn beside(locks: &Fixture) -> Self {
        Self(Fixture {
            engine: locks.engine,
            url: locks.url.clone(),
            alias: format!("{}-documents", locks.alias),
        })
    }
}

#[async_trait]
impl fencing::Documents for Documents {
    async fn create(&self, id: &str) {
        self.put(id, json!({ "number": 0 })).await;
    }

    async fn read(&self, id: &str, fence: Option<Fence>) -> Result<u64, Error> {
        let document = match fence {
            Some(fence) => self.guard(fence.get()).claim(id).await?.unwrap(),
            None => self.source(id).await,
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
            Some(fence) => assert!(self.guard(fence.get()).update(id, &document).await?),
            None => {
                let path = format!("{}/_update/{id}", self.0.alias);
                let answer = self.0.ask(Post, &path, json!({ "doc": document })).await;
                assert!(answer["error"].is_null(), "{answer}");
            }
        }
        Ok(())
    }

    async fn writer(&self, id: &str) -> String {
        match &self.source(id).await["by"] {
            Value::String(by) => by.clone(),
            other => panic!("{other}"),
        }
    }
}
