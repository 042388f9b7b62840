//! What one task of each client does: writes of a key the document behind a guard, and beside it the one without.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join;
use leasehold::{Error, Fence, Lease};
use tokio::time::sleep;

use crate::{
    documents::{Content, Documents, KEYS, Stopped},
    history::{Claim, Event, Recorder, Time},
    work::Worker,
};

/// One holder in so many pauses past its ttl between its last look at its lease and its writes.
const PAUSES: u32 = 3;
/// For so long a worker waits for a key. Many wait, so that a key is taken over as soon as its lease is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// A fence that comes after all.
const AFTER_ALL: Fence = Fence::new(i64::MAX);

impl Worker {
    pub(crate) async fn write_documents(&mut self) -> Result<()> {
        let key = *self.random.choice(&KEYS).unwrap();
        let sent = self.recorder.clock.now();
        let asked = self.leases.acquire(key, self.ttl).wait_for(PATIENCE);
        match asked.await {
            Ok(lease) => self.change(key, sent, lease).await?,
            Err(Error::WaitTimedOut { .. }) => self.recorder.saw(Event::Operations(1)),
            Err(error) => self.pass_over(error).await?,
        }
        Ok(())
    }

    /// Reads the numbers of both documents, and writes them back greater by one.
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

    /// The holder counts on its lease now, if it still does.
    fn saw_live(&self, lease: &Lease) {
        // Live at a look means live before it.
        let last = self.recorder.clock.now();
        if lease.is_live() {
            let lease = lease.id().to_string();
            self.recorder.saw(Event::Ended { lease, last });
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

/// One of the two documents of a key, whose reads and writes are taken down.
#[derive(Clone, Copy)]
struct Document<'a> {
    documents: &'a Documents,
    recorder: &'a Recorder,
    key: &'a str,
    guarded: bool,
}

impl Document<'_> {
    /// `None` if it was not read.
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
        // Of what is not known nothing is told.
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

    /// The guard may refuse only those whose leases are over.
    fn fenced_while_live(self, stopped: Option<Stopped>, lease: &Lease) {
        if stopped == Some(Stopped::Fenced) && lease.is_live() {
            self.recorder.saw(Event::Refused {
                key: self.key.to_owned(),
                fence: lease.fence().get(),
            });
        }
    }
}

/// Reads all documents when no client writes any more: as a holder that comes after all.
pub(crate) async fn read_at_the_end(documents: &Documents, recorder: &Recorder) -> Result<()> {
    for key in KEYS {
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
