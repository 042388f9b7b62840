//! Three tasks of each client. Two of them use keys that mostly stay with their client, so that most grants come from
//! memory. The third one visits the keys of the other clients, which have to give them up.

use std::time::Duration;

use anyhow::Result;
use leasehold::{Attempt, Error, Lease};
use tokio::time::sleep;

use crate::{
    documents,
    history::{Claim, Event, NO_FENCE, Time},
    work::{LOOK, OFTEN, READERS, Worker},
};

/// The number of clients that have keys of their own.
const CLIENTS: usize = documents::KEPT.len();
/// The number of keys of each client.
const OWN: usize = 5;
/// The number of keys that the readers of all clients share, before they take a key of their own.
const INDEXES: usize = 2;
/// How long a visitor waits, at most. The client that has the key has to hear of it before.
const PATIENCE: Duration = Duration::from_secs(12);
/// One in this many uses is a write of documents.
const WRITES: u32 = 30;
/// One in this many uses begins with a shared lease.
const READS: u32 = 4;
/// One in this many uses takes a key away from all readers.
const READS_END: u32 = 2_000;
/// One in this many uses is followed by a pause in which keys may go back.
const RESTS: u32 = 100;

impl Worker {
    /// How long a key stays, although no task uses it.
    pub(crate) fn idle(&mut self) -> Duration {
        match self.random.u32(..8) {
            // It does not go back by itself before another process has waited for long.
            0..3 => Duration::from_secs(20),
            _ => Duration::from_millis(self.random.u64(1_000..3_000)),
        }
    }

    pub(crate) async fn use_kept(&mut self) -> Result<()> {
        if self.random.u32(..RESTS) == 0 {
            sleep(Duration::from_millis(self.random.u64(1_000..4_000))).await;
        }
        sleep(Duration::from_millis(self.random.u64(..40))).await;
        if self.random.u32(..READS_END) == 0 {
            let index = self.index();
            return self.use_key(&index, Duration::ZERO, PATIENCE).await;
        }
        let index = match self.random.u32(..READS) {
            0 => self.read_index().await?,
            _ => None,
        };
        self.use_one().await?;
        if let Some((id, index)) = index {
            self.end_reading(&id, index).await?;
        }
        Ok(())
    }

    async fn use_one(&mut self) -> Result<()> {
        let (own, idle) = (self.client % CLIENTS, self.idle());
        if self.random.u32(..WRITES) == 0 {
            return self.write_documents_of(documents::KEPT[own], idle).await;
        }
        let patience = Duration::from_millis(self.random.u64(..2_000));
        let key = self.kept(own);
        self.use_key(&key, idle, patience).await
    }

    /// Uses a key of another client once.
    pub(crate) async fn visit(&mut self) -> Result<()> {
        sleep(Duration::from_millis(self.random.u64(500..3_000))).await;
        let others = self.client + 1 + self.random.usize(..CLIENTS - 1);
        let other = others % CLIENTS;
        // Half of the visitors would keep the key.
        let stays = self.random.bool();
        let idle = if stays { self.idle() } else { Duration::ZERO };
        if self.random.u32(..WRITES) == 0 {
            return self.write_documents_of(documents::KEPT[other], idle).await;
        }
        let key = self.kept(other);
        self.use_key(&key, idle, PATIENCE).await
    }

    /// One of the keys of this client.
    fn kept(&mut self, client: usize) -> String {
        format!("kept-{client}-{}", self.random.usize(..OWN))
    }

    async fn use_key(&mut self, key: &str, idle: Duration, patience: Duration) -> Result<()> {
        let keeps = self.random.bool();
        let sent = self.recorder.clock.now();
        let asked = if patience < PATIENCE && self.random.bool() {
            let mut ask = self.leases.try_acquire(key, self.ttl).sticky(idle);
            if keeps {
                ask = ask.keep_alive();
            }
            ask.await
        } else {
            let mut ask = self.leases.acquire(key, self.ttl).sticky(idle);
            if keeps {
                ask = ask.keep_alive();
            }
            ask.wait_for(patience).await.map(Attempt::Acquired)
        };
        self.hold_if_granted(key, Claim::All, sent, asked).await
    }

    fn index(&mut self) -> String {
        format!("index-{}", self.random.usize(..INDEXES))
    }

    /// Takes a shared lease that stays with this client beside those of the other clients. It shows no id and no fence,
    /// so it is recorded under a random id.
    async fn read_index(&mut self) -> Result<Option<(String, Lease)>> {
        let (key, idle) = (self.index(), self.idle());
        let patience = Duration::from_millis(self.random.u64(..2_000));
        let sent = self.recorder.clock.now();
        let asked = self.leases.acquire(key.as_str(), self.ttl).keep_alive();
        let lease = match asked.wait_for(patience).shared().sticky(idle).await {
            Ok(lease) => lease,
            Err(Error::WaitTimedOut { .. }) => {
                self.recorder.saw(Event::Operations(1));
                return Ok(None);
            }
            Err(error) => {
                self.pass_over(error).await?;
                return Ok(None);
            }
        };
        let id = format!("reader-{:016x}", fastrand::u64(..));
        self.recorder.saw(Event::Granted {
            key,
            lease: id.clone(),
            claim: Claim::OneOf(READERS),
            fence: NO_FENCE,
            sent,
            got: self.recorder.clock.now(),
        });
        Ok(Some((id, lease)))
    }

    async fn end_reading(&mut self, id: &str, lease: Lease) -> Result<()> {
        let clock = self.recorder.clock;
        let end = clock.now() + LOOK.as_micros() as Time * self.random.u64(..4);
        loop {
            // A lease that is live when it is checked was live before the check.
            let last = clock.now();
            if !lease.is_live() {
                break;
            }
            self.recorder.saw(Event::Ended {
                lease: id.to_owned(),
                fence: NO_FENCE,
                last,
            });
            if last >= end {
                break;
            }
            sleep(OFTEN.min(Duration::from_micros(end - last))).await;
        }
        match lease.release().await {
            Ok(()) | Err(Error::Lost { .. }) => self.recorder.saw(Event::Operations(1)),
            // The release continues in the background.
            Err(error) => anyhow::ensure!(error.is_retryable(), error),
        }
        Ok(())
    }
}
