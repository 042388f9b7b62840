//! One task of each client: it writes the two documents of a key, one with a guard and one without.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join;
use leasehold::{Error, Fence, Lease};
use tokio::time::sleep;

use crate::{
    documents::{self, Content, Documents, SHARED, Stopped},
    history::{Claim, Event, Recorder, Time},
    work::Worker,
};

/// One in this many holders pauses past its ttl, between its last check of the lease and its writes.
const PAUSES: u32 = 3;
/// How long a worker waits for a key. Many workers wait, so that a key is taken over as soon as its lease is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// A fence that is greater than all others.
const AFTER_ALL: Fence = Fence::new(i64::MAX);

impl Worker {
    pub(crate) async fn write_documents(&mut self) -> Result<()> {
        let key = *self.random.choice(&SHARED).unwrap();
        self.write_documents_of(key, Duration::ZERO).await
    }

    /// Writes the documents of this key. Its lease stays with this client until it is idle for so long.
    pub(crate) async fn write_documents_of(&mut self, key: &str, idle: Duration) -> Result<()> {
        let sent = self.recorder.clock.now();
        let asked = self.leases.acquire(key, self.ttl).sticky(idle);
        match asked.wait_for(PATIENCE).await {
            Ok(lease) => self.change(key, sent, lease).await?,
            Err(Error::WaitTimedOut { .. }) => self.recorder.saw(Event::Operations(1)),
            Err(error) => self.pass_over(error).await?,
        }
        Ok(())
    }

    /// Reads the numbers of both documents, and writes each number increased by one.
    async fn change(&mut self, key: &str, sent: Time, lease: Lease) -> Result<()> {
        self.recorder.saw(Event::Granted {
            key: key.to_owned(),
            lease: lease.id().to_string(),
            claim: Claim::All,
            fence: lease.fence().get(),
            sent,
            got: self.recorder.clock.now(),
        });
        let (guarded, unguarded) = (self.document(key, true), self.document(key, false));
        let read = try_join(guarded.read(&lease), unguarded.read(&lease)).await?;
        sleep(Duration::from_millis(self.random.u64(..8))).await;
        self.saw_live(&lease);
        if self.random.u32(..PAUSES) == 0 {
            sleep(self.ttl.mul_f64(1.0 + 0.6 * self.random.f64())).await;
        }
        let (guarded, unguarded) = (self.document(key, true), self.document(key, false));
        try_join(
            guarded.write(&lease, read.0),
            unguarded.write(&lease, read.1),
        )
        .await?;
        self.saw_live(&lease);
        self.end(key, lease).await
    }

    /// Records that the holder relies on its lease now, if it still does.
    fn saw_live(&self, lease: &Lease) {
        // A lease that is live when it is checked was live before the check.
        let last = self.recorder.clock.now();
        if lease.is_live() {
            self.recorder.saw(Event::Ended {
                lease: lease.id().to_string(),
                fence: lease.fence().get(),
                last,
            });
        }
    }

    fn document<'a>(&'a self, key: &'a str, guarded: bool) -> Document<'a> {
        Document {
            documents: &self.documents,
            recorder: &self.recorder,
            key,
            guarded,
        }
    }
}

/// One of the two documents of a key. Its reads and writes are recorded.
#[derive(Clone, Copy)]
struct Document<'a> {
    documents: &'a Documents,
    recorder: &'a Recorder,
    key: &'a str,
    guarded: bool,
}

impl Document<'_> {
    /// Reads the document; `None` if the read failed.
    async fn read(self, lease: &Lease) -> Result<Option<Content>> {
        let read = self.read_under(lease.fence()).await?;
        self.fenced_while_live(read.err(), lease);
        Ok(read.ok())
    }

    async fn read_under(self, fence: Fence) -> Result<Result<Content, Stopped>> {
        let Self { key, guarded, .. } = self;
        let read = self.documents.read(key, guarded, fence).await?;
        if let Ok(content) = read {
            self.recorder.saw(Event::DocumentRead {
                key: key.to_owned(),
                guarded,
                fence: fence.get(),
                content,
                got: self.recorder.clock.now(),
            });
        }
        Ok(read)
    }

    /// Writes the number that follows the one that was read.
    async fn write(self, lease: &Lease, read: Option<Content>) -> Result<()> {
        let Some(read) = read else {
            return Ok(());
        };
        let (Self { key, guarded, .. }, fence) = (self, lease.fence());
        let content = Content {
            number: read.number + 1,
            writer: fence.get(),
            over: read.writer,
        };
        self.recorder.saw(Event::WriteAsked {
            key: key.to_owned(),
            guarded,
            fence: fence.get(),
            number: content.number,
            sent: self.recorder.clock.now(),
        });
        let written = self.documents.write(key, guarded, fence, content).await?;
        // A write with an unknown outcome is not recorded as answered.
        if written != Err(Stopped::Unknown) {
            self.recorder.saw(Event::WriteAnswered {
                key: key.to_owned(),
                guarded,
                fence: fence.get(),
                written: written.is_ok(),
                got: self.recorder.clock.now(),
            });
        }
        self.fenced_while_live(written.err(), lease);
        Ok(())
    }

    /// The guard may refuse only a holder whose lease is over.
    fn fenced_while_live(self, stopped: Option<Stopped>, lease: &Lease) {
        if stopped == Some(Stopped::Fenced) && lease.is_live() {
            self.recorder.saw(Event::Refused {
                key: self.key.to_owned(),
                fence: lease.fence().get(),
            });
        }
    }
}

/// Reads all documents when no client writes any more, with a fence greater than all others.
pub(crate) async fn read_at_the_end(documents: &Documents, recorder: &Recorder) -> Result<()> {
    for key in documents::keys() {
        for guarded in [true, false] {
            let document = Document {
                documents,
                recorder,
                key,
                guarded,
            };
            while document.read_under(AFTER_ALL).await?.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(())
}
