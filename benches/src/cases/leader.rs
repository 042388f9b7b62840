//! How long a key has no leader after its leader has resigned.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leasehold::{
    Fence, Leases,
    jobs::{Leader, Term},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::sides;
use crate::{
    engines::{Engine, Mongo},
    locks::LONG,
    ours::mongo_store,
    results::{CaseResult, Quartiles, SideResult},
    rounds::Plan,
};

const KEY: &str = "leader";
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
    between two terms. On the replica set also with a round trip of 100 ms, beside which the time \
    of the server is short.";

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

    let (mut cycles, mut takeovers, mut heard) = (Vec::new(), Vec::new(), Vec::new());
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
    Ok(vec![
        side("raw", cycles)?,
        side("next leader", takeovers)?,
        side("follower", heard)?,
    ])
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
