//! Documents in this process, which answer after a short delay. They compare fences as the guards do, so that the
//! checkers can be tried without an engine.

use std::{collections::HashMap, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use leasehold::{Error, Fence};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::{Content, Engine};

#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<String, (Fence, Content)>>);

impl Memory {
    async fn on<T>(&self, id: &str, act: impl FnOnce(&mut (Fence, Content)) -> T + Send) -> T {
        let way = || Duration::from_millis(fastrand::u64(..3));
        sleep(way()).await;
        let first = (Fence::new(0), Content::default());
        let answer = act(self.0.lock().entry(id.to_owned()).or_insert(first));
        sleep(way()).await;
        answer
    }

    /// Changes a document that was shown no greater fence.
    async fn guarded<T>(
        &self,
        id: &str,
        fence: Fence,
        act: impl FnOnce(&mut Content) -> T + Send,
    ) -> Result<T, Error> {
        self.on(id, |(shown, content)| {
            if *shown > fence {
                let seen = Some(*shown);
                return Err(Error::Fenced { fence, seen });
            }
            *shown = fence;
            Ok(act(content))
        })
        .await
    }
}

#[async_trait]
impl Engine for Memory {
    async fn create(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn claim(&self, id: &str, fence: Fence) -> Result<Option<Content>, Error> {
        self.guarded(id, fence, |content| Some(*content)).await
    }

    async fn write_guarded(&self, id: &str, fence: Fence, content: Content) -> Result<bool, Error> {
        self.guarded(id, fence, |old| *old = content).await?;
        Ok(true)
    }

    async fn read(&self, id: &str) -> Result<Content> {
        Ok(self.on(id, |(_, content)| *content).await)
    }

    async fn write(&self, id: &str, content: Content) -> Result<()> {
        self.on(id, |(_, old)| {
            let over = old.writer;
            *old = Content { over, ..content };
        })
        .await;
        Ok(())
    }
}
