//! A store that measures how long its answers take, by the clock of the test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold::{
    Error, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest,
    },
};
use leasehold_tests::layer::Layer;
use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct Timed {
    store: Arc<dyn Store>,
    times: Arc<Times>,
}

#[derive(Debug, Default)]
struct Times {
    next: AtomicUsize,
    under_way: Mutex<Vec<(usize, Instant)>>,
    longest: Mutex<Duration>,
}

impl Timed {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let times = Arc::default();
        Self { store, times }
    }

    /// The longest time that an answer took. A request that is still under way counts with the time
    /// that it has waited.
    pub fn longest(&self) -> Duration {
        let under_way = self.times.under_way.lock();
        let waited = under_way.iter().map(|(_, since)| since.elapsed()).max();
        waited.unwrap_or_default().max(*self.times.longest.lock())
    }

    fn starts(&self) -> UnderWay<'_> {
        let number = self.times.next.fetch_add(1, SeqCst);
        self.times.under_way.lock().push((number, Instant::now()));
        UnderWay(&self.times, number)
    }
}

struct UnderWay<'a>(&'a Times, usize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        let at = under_way.iter().position(|(number, _)| *number == self.1);
        if let Some((_, since)) = at.map(|at| under_way.swap_remove(at)) {
            let mut longest = self.0.longest.lock();
            *longest = longest.max(since.elapsed());
        }
    }
}

#[async_trait]
impl Layer for Timed {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let _time = self.starts();
        self.store.acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let _time = self.starts();
        self.store.renew(requests).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let _time = self.starts();
        self.store.release(request).await
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let _time = self.starts();
        self.store.batch(requests).await
    }
}
