//! Conversions of a lease whose requests are carried out late, after the calls that sent them have ended.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{
    Attempt, Error, Lease, Mode, Store, Upgrade,
    store::{Cause, ConvertAnswer, ConvertRequest},
};
use parking_lot::Mutex;

use super::{
    layer::{Layer, Layered},
    patient,
};

/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// How often a call sends its request.
const TRIES: usize = 3;

/// A store that keeps conversions back, as a network that is slow may.
#[derive(Clone, Debug)]
struct KeepsBack {
    store: Arc<dyn Store>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// How many more conversions are kept back.
    more: usize,
    conversions: Vec<ConvertRequest>,
}

#[async_trait]
impl Layer for KeepsBack {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        if self.keeps_back(request) {
            return Err(Error::Interrupted {
                store: "a slow network",
                source: Cause::text("kept back"),
            });
        }
        self.store.convert(request).await
    }
}

impl KeepsBack {
    fn keeps_back(&self, request: &ConvertRequest) -> bool {
        let mut kept = self.kept.lock();
        let is_kept = kept.more > 0;
        if is_kept {
            kept.more -= 1;
            kept.conversions.push(request.clone());
        }
        is_kept
    }

    /// Keeps back this many conversions from now on.
    fn keep_back(&self, more: usize) {
        self.kept.lock().more = more;
    }

    /// Lets the server carry out what was kept back.
    async fn carry_out(&self) {
        let late = std::mem::take(&mut self.kept.lock().conversions);
        assert!(!late.is_empty());
        for conversion in late {
            self.store.convert(&conversion).await.unwrap();
        }
    }
}

/// A downgrade is sent again and answered, or is given up. In both cases it is carried out after a later upgrade, and
/// the other way round. The lease has the mode that its holder was told last, for another process too.
pub async fn late_conversions_undo_no_later_ones(store: Arc<dyn Store>) {
    let slow = KeepsBack {
        store: store.clone(),
        kept: Arc::default(),
    };
    let leases = patient(Layered(slow.clone()));
    for kept in [1, TRIES] {
        let key = format!("downgrade {kept}");
        let lease = leases.acquire(&key, LONG).await.unwrap();
        slow.keep_back(kept);
        let downgraded = lease.downgrade().await;
        assert_eq!(downgraded.is_ok(), kept < TRIES, "{downgraded:?}");
        assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
        slow.carry_out().await;
        has_mode(&store, &lease, Mode::Exclusive).await;

        let key = format!("upgrade {kept}");
        let lease = leases.acquire(&key, LONG).shared().await.unwrap();
        slow.keep_back(kept);
        let upgraded = lease.upgrade().await;
        assert_eq!(upgraded.is_ok(), kept < TRIES, "{upgraded:?}");
        lease.downgrade().await.unwrap();
        slow.carry_out().await;
        has_mode(&store, &lease, Mode::Shared).await;
    }
}

/// Another process is granted a shared lease beside this one only if this one is shared.
async fn has_mode(store: &Arc<dyn Store>, lease: &Lease, mode: Mode) {
    lease.renew().await.unwrap();
    assert_eq!(lease.mode(), mode);
    let asked = patient(store.clone())
        .try_acquire(lease.key(), LONG)
        .shared()
        .await;
    let is_granted = matches!(asked.unwrap(), Attempt::Acquired(_));
    assert_eq!(is_granted, mode == Mode::Shared, "{}", lease.key());
}
