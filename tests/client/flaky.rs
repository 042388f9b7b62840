//! A memory store behind a bad network.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use leasehold::{
    Error, Key, LockState, MemoryStore, PermitsLeft, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, Cause, ConvertAnswer,
        ConvertRequest, Eviction, FreedKey, FreedKeys, GiveBackRequest, LeaseId, ListRequest,
        LookAnswer, LookRequest, MAX_BATCH, Page, PermitAnswer, PermitRequest, Quota,
        ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
};
use parking_lot::Mutex;
use tokio::{
    sync::broadcast,
    time::{sleep, timeout},
};

use super::gates::Gates;

/// How often the stream of a store with news sends an empty list.
const LOOK: Duration = Duration::from_secs(1);

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It never reaches the server.
    NotSent,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is lost on its way, and the client cannot tell whether it was carried out.
    AnswerCut,
    /// It is carried out this much later.
    Late(Duration),
    /// It is carried out at once, and answered this much later.
    AnswerLate(Duration),
    /// It is carried out this much later, and never answered.
    LateWithoutAnswer(Duration),
    /// It is carried out this much later, and then the connection breaks.
    LateAndCut(Duration),
    /// It is refused for good.
    Denied,
    /// It is carried out, and another node refuses it because of its load.
    Overloaded,
    /// The driver panics.
    Panic,
    /// The connection breaks while the request, an acquire, is on its way. It is carried out this much later.
    CutAndLate(Duration),
    /// The connection breaks while the request, an acquire, is on its way. The server carries it out when the test
    /// [tells it to](FlakyStore::carry_out_kept).
    CutAndKept,
}

/// How the store tells of keys that become free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum News {
    /// It has no such stream.
    #[default]
    None,
    /// It has a stream that never tells anything.
    Silence,
    /// Each stream breaks as soon as it is open.
    Broken,
    /// It refuses this client the stream.
    Refused,
    /// It tells the keys that the test tells it.
    Told,
}

/// A memory store that lets its next changes meet these fates. When there are no more fates, it works.
#[derive(Clone, Debug)]
pub struct FlakyStore {
    pub memory: MemoryStore,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    /// The fate of the next change of this name.
    named: Arc<Mutex<Option<(&'static str, Fate)>>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// How many requests each batch had.
    pub batched: Arc<Mutex<Vec<usize>>>,
    /// Whether a failover may undo each of the releases that came outside of a batch.
    pub undoable: Arc<Mutex<Vec<bool>>>,
    hanging: Arc<Mutex<Option<Key>>>,
    kept: Arc<Mutex<Option<AcquireRequest>>>,
    reads_fail: Arc<AtomicBool>,
    news: Arc<Mutex<News>>,
    told: broadcast::Sender<Key>,
    streams: Arc<AtomicUsize>,
    /// How many requests at once the store asks for, from handles that are made later.
    pub at_once: usize,
    pub gates: Gates,
}

impl FlakyStore {
    pub fn new() -> Self {
        Self {
            at_once: usize::MAX,
            memory: MemoryStore::new(),
            fates: Arc::default(),
            named: Arc::default(),
            calls: Arc::default(),
            batched: Arc::default(),
            undoable: Arc::default(),
            hanging: Arc::default(),
            kept: Arc::default(),
            reads_fail: Arc::default(),
            news: Arc::default(),
            told: broadcast::Sender::new(64),
            streams: Arc::default(),
            gates: Gates::default(),
        }
    }

    pub fn set_news(&self, news: News) {
        *self.news.lock() = news;
    }

    /// Tells the streams that a key became free.
    pub fn tell(&self, key: &str) {
        self.told.send(Key::new(key).unwrap()).unwrap();
    }

    /// Whether a stream is open that tells keys.
    pub fn is_listened_to(&self) -> bool {
        self.told.receiver_count() > 0
    }

    /// How often a stream was opened.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::SeqCst)
    }

    /// How many clones of this store there are, this one included.
    pub fn owners(&self) -> usize {
        Arc::strong_count(&self.streams)
    }

    /// From now on a call that renews or looks at this key is never answered.
    pub fn hang_on(&self, key: &str) {
        *self.hanging.lock() = Some(Key::new(key).unwrap());
    }

    pub fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().extend(fates);
    }

    /// Lets the next change of this name meet a fate.
    pub fn next_of(&self, call: &'static str, fate: Fate) {
        *self.named.lock() = Some((call, fate));
    }

    /// Replaces the fates that are still to come by these.
    pub fn fates_now(&self, fates: impl IntoIterator<Item = Fate>) {
        *self.fates.lock() = fates.into_iter().collect();
    }

    /// Carries out the acquire whose connection broke.
    pub async fn carry_out_kept(&self) -> AcquireAnswer {
        let request = self.kept.lock().take().unwrap();
        self.memory.acquire(&request).await.unwrap()
    }

    /// Sets whether reads of a key fail from now on.
    pub fn fail_reads(&self, fail: bool) {
        self.reads_fail.store(fail, Ordering::SeqCst);
    }

    /// The names of the changes that were requested since the last call of this method.
    pub fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }

    async fn meet<T>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.calls.lock().push(call);
        let named = self.named.lock().take_if(|(name, _)| *name == call);
        let named = named.map(|(_, fate)| fate);
        let fate = named.or_else(|| self.fates.lock().pop_front());
        self.gates.pass().await;
        let answer = self.carry_out(fate, work).await;
        self.gates.pass().await;
        answer
    }

    async fn carry_out<T>(
        &self,
        fate: Option<Fate>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let store = "the flaky store";
        let source = || Cause::text("a fate");
        match fate {
            None => work.await,
            Some(Fate::NotSent) => Err(Error::Unreachable {
                store,
                source: source(),
            }),
            Some(Fate::AnswerLost) => {
                work.await?;
                Err(Error::Interrupted {
                    store,
                    source: source(),
                })
            }
            Some(Fate::AnswerCut) => Err(Error::Interrupted {
                store,
                source: source(),
            }),
            Some(Fate::Late(by)) => {
                sleep(by).await;
                work.await
            }
            Some(Fate::AnswerLate(by)) => {
                let answer = work.await;
                sleep(by).await;
                answer
            }
            Some(Fate::LateWithoutAnswer(by)) => {
                sleep(by).await;
                let _ = work.await;
                std::future::pending().await
            }
            Some(Fate::LateAndCut(by)) => {
                sleep(by).await;
                work.await?;
                Err(Error::Interrupted {
                    store,
                    source: source(),
                })
            }
            Some(Fate::Overloaded) => {
                work.await?;
                Err(Error::Overloaded {
                    store,
                    source: source(),
                })
            }
            Some(Fate::Denied) => Err(Error::Denied {
                store,
                source: source(),
            }),
            Some(Fate::CutAndLate(_) | Fate::CutAndKept) => unreachable!("it is for acquires"),
            Some(Fate::Panic) => panic!("the driver has a bad day"),
        }
    }
}

#[async_trait]
impl Store for FlakyStore {
    fn clock_margin(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let fate = self.fates.lock().front().copied();
        let late = match fate {
            Some(Fate::CutAndLate(by)) => Some(by),
            _ => None,
        };
        if let Some(Fate::CutAndKept) = fate {
            *self.kept.lock() = Some(request.clone());
            *self.fates.lock().front_mut().unwrap() = Fate::AnswerCut;
        }
        if let Some(by) = late {
            let (memory, request) = (self.memory.clone(), request.clone());
            tokio::spawn(async move {
                sleep(by).await;
                memory.acquire(&request).await
            });
            *self.fates.lock().front_mut().unwrap() = Fate::AnswerCut;
        }
        self.meet("acquire", self.memory.acquire(request)).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.meet("leave", self.memory.leave(key, waiter)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let hanging = self.hanging.lock().clone();
        if requests
            .iter()
            .any(|request| Some(&request.key) == hanging.as_ref())
        {
            std::future::pending::<()>().await;
        }
        self.meet("renew", self.memory.renew(requests)).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.meet("convert", self.memory.convert(request)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.undoable.lock().push(request.is_undoable());
        self.meet("release", self.memory.release(request)).await
    }

    fn max_concurrent(&self) -> usize {
        self.at_once
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        assert!((2..=MAX_BATCH).contains(&requests.len()));
        let keys: HashSet<_> = requests.iter().map(BatchRequest::key).collect();
        assert_eq!(keys.len(), requests.len(), "one key twice: {requests:?}");
        self.batched.lock().push(requests.len());
        self.meet("batch", self.memory.batch(requests)).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.streams.fetch_add(1, Ordering::SeqCst);
        let broken = Error::Interrupted {
            store: "the flaky store",
            source: Cause::text("a fate"),
        };
        Ok(match *self.news.lock() {
            News::None => None,
            News::Silence => Some(stream::pending().boxed()),
            News::Broken => Some(stream::iter([Err(broken)]).boxed()),
            News::Refused => {
                return Err(Error::Denied {
                    store: "the flaky store",
                    source: Cause::text("a fate"),
                });
            }
            News::Told => {
                let told = self.told.subscribe();
                let next = async |mut told: broadcast::Receiver<Key>| {
                    let news = timeout(LOOK, told.recv()).await;
                    let freed = news.into_iter().flatten().map(FreedKey::new);
                    Some((Ok(freed.collect()), told))
                };
                Some(stream::unfold(told, next).boxed())
            }
        })
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let fate = self
            .reads_fail
            .load(Ordering::SeqCst)
            .then_some(Fate::NotSent);
        self.carry_out(fate, self.memory.inspect(key)).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let hanging = self.hanging.lock().clone();
        if leases.iter().any(|it| Some(&it.key) == hanging.as_ref()) {
            std::future::pending::<()>().await;
        }
        let fate = self
            .reads_fail
            .load(Ordering::SeqCst)
            .then_some(Fate::NotSent);
        self.carry_out(fate, self.memory.look(leases)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.memory.list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.meet("evict", self.memory.evict(key)).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.memory.remove_expired(key).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.meet("permit", self.memory.permit(request)).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.meet("peek", self.memory.peek(key, quota)).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.meet("give_back", self.memory.give_back(request)).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.memory.purge(retention).await
    }
}
