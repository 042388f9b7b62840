//! The documents that holders write on the engine under test. Each key has one document with the guard of
//! `docs/fencing.md`, and one without a guard.

mod memory;
mod mongo;
mod search;

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use leasehold::{Error, Fence};
use mongodb::Client;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use self::{
    memory::Memory,
    mongo::Mongo,
    search::{OnElasticsearch, OnOpenSearch, Plain},
};
use crate::{broken::Wrong, client::Task};

/// The keys whose holders write documents. All clients wait for them.
pub const SHARED: [&str; 2] = ["documents-0", "documents-1"];
/// More such keys, which mostly stay with one client each.
pub const KEPT: [&str; 4] = [
    "kept-documents-0",
    "kept-documents-1",
    "kept-documents-2",
    "kept-documents-3",
];

/// All keys whose holders write documents.
pub fn keys() -> impl Iterator<Item = &'static str> {
    SHARED.into_iter().chain(KEPT)
}

/// The content of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The number of writes so far, if none was lost.
    pub number: i64,
    /// The fence of the last write, 0 before the first.
    pub writer: i64,
    /// The fence of the write that this one overwrote.
    pub over: i64,
}

/// Why an operation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A greater fence was shown before. Nothing was written.
    Fenced,
    /// It is unknown what the server did or will do.
    Unknown,
}

/// The documents of an engine, by their ids.
#[async_trait]
trait Engine: Debug + Send + Sync {
    /// Creates an empty document.
    async fn create(&self, id: &str) -> Result<()>;

    /// Shows the fence to the guard, and reads the document.
    async fn claim(&self, id: &str, fence: Fence) -> Result<Option<Content>, Error>;

    /// Writes through the guard. Returns whether there was a document to write.
    async fn write_guarded(&self, id: &str, fence: Fence, content: Content) -> Result<bool, Error>;

    /// Reads without a guard.
    async fn read(&self, id: &str) -> Result<Content>;

    /// Writes without a guard. The server itself records which write this one overwrites.
    async fn write(&self, id: &str, content: Content) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct Documents {
    engine: Arc<dyn Engine>,
    call_timeout: Duration,
    /// Whether the guard compares fences.
    compares: bool,
}

impl Documents {
    /// The documents of a run, with new clients.
    pub async fn of(task: &Task) -> Result<Self> {
        let name = format!("{}-documents", task.name);
        let engine: Arc<dyn Engine> = match &*task.engine {
            "elasticsearch" | "elasticsearch-three" => {
                Arc::new(OnElasticsearch::new(Plain::new(&task.address, name)?)?)
            }
            "opensearch" => Arc::new(OnOpenSearch::new(Plain::new(&task.address, name)?)?),
            _ => {
                let client = Client::with_uri_str(&task.address).await?;
                let database = client.database("leasehold_test");
                Arc::new(Mongo(database.collection(&name)))
            }
        };
        Ok(Self {
            engine,
            call_timeout: task.pace.call_timeout,
            compares: task.wrong != Wrong::GuardComparesNothing,
        })
    }

    /// Documents in this process, for clients in this process.
    pub fn in_memory(wrong: Wrong) -> Self {
        Self {
            engine: Arc::new(Memory::default()),
            call_timeout: Duration::from_secs(1),
            compares: wrong != Wrong::GuardComparesNothing,
        }
    }

    /// Creates the documents of all keys.
    pub async fn create(&self) -> Result<()> {
        for key in keys() {
            for guarded in [true, false] {
                self.engine.create(&id(key, guarded)).await?;
            }
        }
        Ok(())
    }

    /// Reads the document of a key. With a guard, this claims the document.
    pub async fn read(
        &self,
        key: &str,
        guarded: bool,
        fence: Fence,
    ) -> Result<Result<Content, Stopped>> {
        let id = id(key, guarded);
        if guarded && self.compares {
            let claim = timeout(self.call_timeout, self.engine.claim(&id, fence)).await;
            return Ok(match stopped(claim.ok())? {
                Ok(content) => Ok(content.ok_or_else(|| anyhow::anyhow!("no document {id}"))?),
                Err(stopped) => Err(stopped),
            });
        }
        let read = timeout(self.call_timeout, self.engine.read(&id)).await;
        Ok(read.ok().and_then(Result::ok).ok_or(Stopped::Unknown))
    }

    /// Writes the document of a key.
    pub async fn write(
        &self,
        key: &str,
        guarded: bool,
        fence: Fence,
        content: Content,
    ) -> Result<Result<(), Stopped>> {
        let id = id(key, guarded);
        if guarded && self.compares {
            let write = self.engine.write_guarded(&id, fence, content);
            return Ok(
                match stopped(timeout(self.call_timeout, write).await.ok())? {
                    Ok(true) => Ok(()),
                    // The filter did not match, and then a failover undid the fence that had prevented the match.
                    Ok(false) => Err(Stopped::Unknown),
                    Err(stopped) => Err(stopped),
                },
            );
        }
        let write = timeout(self.call_timeout, self.engine.write(&id, content)).await;
        Ok(write.ok().and_then(Result::ok).ok_or(Stopped::Unknown))
    }
}

fn id(key: &str, guarded: bool) -> String {
    let how = if guarded { "guarded" } else { "unguarded" };
    format!("{key}-{how}")
}

/// The answer of a guard, if it came in time. Returns an error that is not a fault of a server or of the network.
fn stopped<T>(answer: Option<Result<T, Error>>) -> Result<Result<T, Stopped>> {
    match answer {
        Some(Ok(answer)) => Ok(Ok(answer)),
        Some(Err(Error::Fenced { .. })) => Ok(Err(Stopped::Fenced)),
        Some(Err(error)) => {
            anyhow::ensure!(error.is_retryable(), error);
            Ok(Err(Stopped::Unknown))
        }
        None => Ok(Err(Stopped::Unknown)),
    }
}
