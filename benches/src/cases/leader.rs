//! How long a key has no leader after its leader has resigned.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use leasehold::{
    Fence, Leases,
    jobs::{Leader, Term},
};
use mongodb::{
    bson::{Document, doc},
    change_stream::{ChangeStream, event::ChangeStreamEvent},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::sides;
use crate::{
    engines::{Engine, Mongo},
    locks::{LONG, Locks},
    ours::mongo_store,
    raw::RawLocks,
    results::{CaseResult, Quartiles, SideResult},
    rounds::Plan,
};

const KEY: &str = "leader";
const TOLD: &str = "told";
const TTL: Duration = Duration::from_secs(10);
const STOPS: usize = 10;
/// The minimum length of a term. By its end the waiting client asks at its full pause. A random part of a second is
/// added, so that the terms do not end in step with the requests.
const TERM: Duration = Duration::from_secs(2);
/// A round trip beside which the time of the server is short.
const FAR_OFF: Duration = Duration::from_millis(100);
/// The limit for a measurement that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub const ABOUT: &str = "Two clients campaign for one key, and a third follows. The leader resigns after 2 to 3 s. \
    The figures are the times from then until the work of the other client begins, and until the \
    follower hears of it, over 10 terms. Raw is a release and an acquire, one after the other, \
    between two terms. `raw-told` is a release by the bare driver, and an acquire by another \
    client, which waits for the event of a change stream of its own. On the replica set also \
    with a round trip of 100 ms, beside which the time of the server is short.";

pub async fn measure(mongo: &Mongo, _: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    result.add("a leader resigns", takeovers(mongo).await?);
    if mongo.engine == Engine::Replset {
        let (far_off, _proxy) = mongo.far_off(FAR_OFF / 2).await?;
        let name = format!("the same, {} ms away", FAR_OFF.as_millis());
        result.add(name, takeovers(&far_off).await?);
    }
    Ok(result)
}

async fn takeovers(mongo: &Mongo) -> Result<Vec<SideResult>> {
    let collection = mongo.collection("leasehold").name().to_owned();
    let (begun, mut terms) = mpsc::unbounded_channel();
    let mut campaigns = Vec::new();
    for _ in 0..2 {
        let leader = client(mongo, &collection).await?.leader(KEY, TTL);
        campaigns.push(campaign(leader, begun.clone()));
    }
    let follower = client(mongo, &collection).await?;
    let mut leading = follower.leader(KEY, TTL).watch();
    let raw = sides::raw(mongo);
    let mut told = match mongo.engine == Engine::Replset {
        true => Some(Told::new(mongo).await?),
        false => None,
    };

    let (mut events, mut cycles, mut takeovers, mut heard) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut term = next(&mut terms).await?;
    while takeovers.len() < STOPS {
        sleep(TERM + Duration::from_secs(1).mul_f64(fastrand::f64())).await;
        let guard = raw.try_acquire(KEY, LONG).await?;
        let guard = guard.context("a free key is held")?;
        let begin = Instant::now();
        guard.release().await?;
        let guard = raw.try_acquire(KEY, LONG).await?;
        cycles.push(millis(begin.elapsed()));
        guard.context("a free key is held")?.release().await?;
        if let Some(told) = &mut told {
            events.push(millis(told.takeover().await?));
        }

        let resigned = Instant::now();
        // This fails if the term has ended by itself. Another term then begins as well.
        let _ = term.resign.send(());
        term = next(&mut terms).await?;
        takeovers.push(millis(term.at.saturating_duration_since(resigned)));
        let hears = leading.wait_for(|it| it.as_ref().is_some_and(|it| it.fence == term.fence));
        timeout(PATIENCE, hears)
            .await
            .context("the follower hears nothing")??;
        heard.push(millis(resigned.elapsed()));
    }
    for campaign in campaigns {
        campaign.abort();
    }
    let mut sides = vec![side("raw", cycles)?];
    if told.is_some() {
        sides.push(side("raw-told", events)?);
    }
    sides.push(side("next leader", takeovers)?);
    sides.push(side("follower", heard)?);
    Ok(sides)
}

/// Another client of the bare driver, with a change stream that tells it of each grant and each release.
struct Told {
    first: RawLocks,
    locks: RawLocks,
    changes: ChangeStream<ChangeStreamEvent<Document>>,
}

impl Told {
    async fn new(mongo: &Mongo) -> Result<Self> {
        let (database, _) = mongo.counting().await?;
        let first = mongo.collection("raw-told");
        let collection = database.collection::<Document>(first.name());
        let changes = doc! { "documentKey._id": TOLD };
        let changes = collection.watch().pipeline([doc! { "$match": changes }]);
        Ok(Self {
            changes: changes.await?,
            first: RawLocks::new("raw-told", &first),
            locks: RawLocks::new("raw-told", &collection),
        })
    }

    /// How long it takes from the beginning of a release until this client has the key.
    async fn takeover(&mut self) -> Result<Duration> {
        let guard = self.first.try_acquire(TOLD, LONG).await?;
        let guard = guard.context("a free key is held")?;
        self.heard().await?;
        let begin = Instant::now();
        let (released, next) = tokio::join!(guard.release(), async {
            self.heard().await?;
            self.locks.try_acquire(TOLD, LONG).await
        });
        let took = begin.elapsed();
        released?;
        self.heard().await?;
        next?.context("a free key is held")?.release().await?;
        self.heard().await?;
        Ok(took)
    }

    async fn heard(&mut self) -> Result<()> {
        let event = timeout(PATIENCE, self.changes.next()).await;
        event
            .context("nothing is told")?
            .context("the stream has ended")??;
        Ok(())
    }
}

/// A term that has begun.
struct Begun {
    at: Instant,
    fence: Fence,
    resign: oneshot::Sender<()>,
}

/// A separate client, like that of a separate process.
async fn client(mongo: &Mongo, collection: &str) -> Result<Leases> {
    let (database, _) = mongo.counting().await?;
    Ok(Leases::new(
        mongo_store(&database.collection(collection)).await?,
    ))
}

fn campaign(
    leader: Leader,
    begun: mpsc::UnboundedSender<Begun>,
) -> JoinHandle<Result<(), leasehold::Error>> {
    tokio::spawn(leader.run(async move |term: &Term| {
        let at = Instant::now();
        let (resign, resigns) = oneshot::channel();
        let fence = term.fence();
        let told = begun.send(Begun { at, fence, resign });
        // This fails when the measurement is over.
        if told.is_ok() && resigns.await.is_ok() {
            term.resign();
        }
        std::future::pending::<Result<(), std::convert::Infallible>>().await
    }))
}

async fn next(terms: &mut mpsc::UnboundedReceiver<Begun>) -> Result<Begun> {
    let begun = timeout(PATIENCE, terms.recv()).await;
    begun.context("nobody leads")?.context("nobody campaigns")
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn side(name: &str, times: Vec<f64>) -> Result<SideResult> {
    let longest = times.iter().copied().fold(0.0, f64::max);
    let quartiles = Quartiles::of(times).context("no time was measured")?;
    let figures = [("p50, ms", quartiles.median), ("longest, ms", longest)];
    Ok(SideResult::once(name, &figures))
}
