//! Clients that wait as long as a slow machine needs, and a proxy that shortens waits of the engine that prove nothing.

use std::{any::Any, error::Error as _, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use leasehold::{
    Error, Key, LockState, PermitsLeft, Store,
    store::{
        AcquireAnswer, AcquireRequest, AwaitedKeys, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Eviction, FreedKeys, GiveBackRequest, LeaseId, ListRequest, LookAnswer,
        LookRequest, Page, PermitAnswer, PermitRequest, Quota, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest,
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};

/// How long a test waits: a limit that only ends a hang.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Whether the store got no answer in time to the question where its locks are. It asks that again at its next request.
pub fn asks_again(error: &Error) -> bool {
    // The lookup's own error is the source of the error that nothing was sent.
    error.driver_error::<Error>().is_some_and(|source| {
        let is_late = |it: &elasticsearch::Error| it.is_timeout();
        let is_late_too = |it: &opensearch::Error| it.is_timeout();
        matches!(source, Error::TimedOut { .. })
            || source.driver_error().is_some_and(is_late)
            || source.driver_error().is_some_and(is_late_too)
    })
}

/// A store that repeats the question where its locks are until it is answered. Nothing else was sent by then, so nobody
/// notices the repeat.
#[derive(Debug)]
pub struct Patient<S>(pub S);

macro_rules! patiently {
    ($operation:expr) => {{
        let start = Instant::now();
        loop {
            match $operation.await {
                Err(error) if asks_again(&error) && start.elapsed() < PATIENCE => {}
                answer => break answer,
            }
        }
    }};
}

#[async_trait]
impl<S: Store> Store for Patient<S> {
    fn clock_margin(&self) -> Duration {
        self.0.clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        patiently!(self.0.acquire(request))
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        patiently!(self.0.leave(key, waiter))
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        patiently!(self.0.renew(requests))
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        patiently!(self.0.convert(request))
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        patiently!(self.0.release(request))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        patiently!(self.0.inspect(key))
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        patiently!(self.0.look(leases))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        patiently!(self.0.list(request))
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        patiently!(self.0.evict(key))
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        patiently!(self.0.remove_expired(key))
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        patiently!(self.0.permit(request))
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        patiently!(self.0.peek(key, quota))
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        patiently!(self.0.give_back(request))
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        patiently!(self.0.purge(retention))
    }

    fn max_concurrent(&self) -> usize {
        self.0.max_concurrent()
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        patiently!(self.0.batch(requests))
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        patiently!(self.0.freed())
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        patiently!(self.0.awaited())
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.0.as_any()
    }
}

/// Repeats what may be retried, until it is done or refused.
pub async fn until_answered<T>(ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && start.elapsed() < PATIENCE => {
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

/// The first result of an attempt for which the machine was quick enough.
pub async fn until_quick<T>(attempt: impl AsyncFn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(outcome) = attempt().await {
            return outcome;
        }
        let spent = start.elapsed();
        assert!(spent < PATIENCE, "no attempt was quick enough in {spent:?}");
    }
}

/// The error that the engine answers with. That no answer came in time proves nothing, so the request is sent again.
pub async fn answered_error(store: &dyn Store, request: &AcquireRequest) -> Error {
    let start = Instant::now();
    loop {
        let error = store.acquire(request).await.unwrap_err();
        let unanswered = error.source().is_some_and(is_without_answer);
        if !unanswered || start.elapsed() > PATIENCE {
            return error;
        }
    }
}

/// Whether one of these causes is that the HTTP client got no answer: a client says so in a text only.
fn is_without_answer(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.to_string().contains("error sending request")
        || cause.source().is_some_and(is_without_answer)
}

/// An address that leads to the engine at `host`, and has it wait for shards for a second at most, instead of as long
/// as the stores ask for: it waits up to three times for one update.
pub async fn with_short_waits(host: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let host = host.clone();
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(host).await else {
                    return;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::join!(
                    shorten(from_client, to_server),
                    shorten(from_server, to_client),
                );
            });
        }
    });
    address
}

/// Passes on what it reads, with shorter waits in it. Each request is short, and comes in one read.
async fn shorten(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    const WAIT: &[u8] = b"timeout=5s";
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let read = &mut buffer[..read];
        let waits: Vec<_> = (0..read.len())
            .filter(|at| read[*at..].starts_with(WAIT))
            .collect();
        for at in waits {
            read[at..at + WAIT.len()].copy_from_slice(b"timeout=1s");
        }
        if to.write_all(read).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
