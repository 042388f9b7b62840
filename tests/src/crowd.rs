//! A key with as many holders as it may have, each with the longest owner and note: the largest document that there can
//! be.
//!
//! A test stores the document in its database, with the names of the leases from here. A thousand grants one after the
//! other would take too long.

use std::{sync::Arc, time::Duration};

use futures::{TryStreamExt, future::join_all};
use leasehold::{
    Attempt, Error, Filter, Key, Store,
    limits::{MAX_HOLDERS, MAX_NOTE_BYTES, MAX_OWNER_BYTES},
    store::{
        AcquireAnswer, AcquireRequest, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewRequest,
    },
};

use super::patient;

/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);

pub struct Crowd {
    /// The holders that the test still has to store. The first one was granted its lease.
    pub leases: Vec<LeaseId>,
    first: AcquireRequest,
}

impl Crowd {
    /// Acquires the first lease. After that the test makes as many copies of its holder as there are leases.
    pub async fn around_the_first(store: &dyn Store) -> Self {
        let key = Key::new("crowd").unwrap();
        // These letters take the most room in JSON: six bytes each.
        let owner = "\u{1}".repeat(MAX_OWNER_BYTES);
        let first = AcquireRequest::exclusive(key, LeaseId::random(), owner.into(), LONG).shared();
        let first = first.note("\u{2}".repeat(MAX_NOTE_BYTES));
        let answer = store.acquire(&first).await.unwrap();
        assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
        let leases = (1..MAX_HOLDERS).map(|_| LeaseId::random()).collect();
        Self { leases, first }
    }

    /// One more holder is an error, and nothing is stored.
    pub async fn takes_no_other(&self, store: &Arc<dyn Store>) {
        let key = &self.first.key;
        let leases = patient(store.clone());
        for reentrant in [false, true] {
            let one_more = leases.try_acquire(key, LONG).shared();
            let one_more = if reentrant {
                one_more.owner(self.first.owner.clone()).reentrant()
            } else {
                one_more
            };
            let error = one_more.await.map(drop).unwrap_err();
            assert!(matches!(error, Error::TooManyHolders { .. }), "{error:?}");
        }
        for writer in [
            leases.try_acquire(key, LONG),
            leases.try_acquire(key, LONG).permits(1, 2_000),
        ] {
            let Attempt::Held(held) = writer.await.unwrap() else {
                panic!("granted beside readers");
            };
            assert_eq!(held.holders().len(), MAX_HOLDERS);
        }
    }

    /// Of several requests at the same time one gets the last place.
    async fn last_place_is_for_one(&self, store: &Arc<dyn Store>) {
        // Each request is that of a process of its own: the tasks of one share a lease.
        let race = (0..8).map(|_| async {
            let leases = patient(store.clone());
            leases.try_acquire(&self.first.key, LONG).shared().await
        });
        let mut inside = Vec::new();
        for outcome in join_all(race).await {
            match outcome {
                Ok(Attempt::Acquired(lease)) => inside.push(lease),
                Err(Error::TooManyHolders { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(inside.len(), 1);
        for lease in inside {
            lease.release().await.unwrap();
        }
    }

    /// All operations of its holders and of other clients work.
    pub async fn lives_on(self, store: &Arc<dyn Store>) {
        let key = &self.first.key;
        let leases = patient(store.clone());
        let again = store.acquire(&self.first).await.unwrap();
        assert!(matches!(again, AcquireAnswer::Granted(_)), "{again:?}");
        let state = leases.inspect(key).await.unwrap().unwrap();
        assert_eq!(state.holders.len(), MAX_HOLDERS);
        for holder in &state.holders {
            assert_eq!(
                (&holder.owner, &holder.note),
                (&self.first.owner, &self.first.note)
            );
        }
        let by_owner = Filter::new().live().owner(&*self.first.owner);
        let listed: Vec<_> = leases.list(by_owner).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].holders.len(), MAX_HOLDERS);

        let renewal = |lease| RenewRequest::new(key.clone(), lease, LONG);
        let many: Vec<_> = self.leases.iter().take(3).copied().map(renewal).collect();
        // The renewal is sent alone, and then with others.
        for renewals in [&many[..1], &many[..]] {
            for answer in store.renew(renewals).await.unwrap() {
                assert!(matches!(answer, Ok(RenewAnswer::Renewed(_))), "{answer:?}");
            }
        }

        let waiting = leases.acquire(key, LONG).shared();
        let waiting = waiting.wait_for(LONG).into_future();
        let waiting = tokio::spawn(waiting);
        let release = ReleaseRequest::new(key.clone(), self.leases[500]);
        let released = store.release(&release).await.unwrap();
        assert_eq!(released, ReleaseAnswer::Released);
        let last = waiting.await.unwrap().unwrap();
        let other = patient(store.clone());
        let full = other.try_acquire(key, LONG).shared().await;
        assert!(
            matches!(full, Err(Error::TooManyHolders { .. })),
            "{full:?}"
        );
        last.release().await.unwrap();
        self.last_place_is_for_one(store).await;
        let evicted = leases.evict(key).await.unwrap().unwrap().evicted;
        assert_eq!(evicted.len(), MAX_HOLDERS - 1);
        leases
            .acquire(key, LONG)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}
