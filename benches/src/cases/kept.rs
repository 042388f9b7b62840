//! The cost of keeping very many leases alive, and how many leases are lost under difficult conditions.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use leasehold::{Filter, Leases};
use mongodb::options::ClientOptions;
use tokio::time::{sleep, sleep_until, timeout};
use uuid::Uuid;

use super::{kept_raw, search};
use crate::{
    busy::Busy,
    counted,
    engines::{Engine, Mongo},
    keeping::{Acquired, Closed, Keeping, Kept, Order, PREFIX},
    proxy::Proxy,
    raw_search::Bare,
    results::{CaseResult, SideResult, grouped},
    rounds::Plan,
};

/// For how many ttls the leases are kept.
const HOLD: f64 = 2.0;
/// How long the server does not answer, as a fraction of the ttl: 6 s of 20 s.
const AWAY: f64 = 0.3;
/// When the server stops answering, in ttls. These are two different moments between two renewals.
const GOES: [f64; 2] = [0.67, 1.5];
/// The default clock margin: how much earlier a lease ends for the client than on the server.
const MARGIN: Duration = Duration::from_millis(100);
/// Only a list that hangs takes this long.
const LISTING: Duration = Duration::from_secs(120);

/// How many leases a case keeps, and under which conditions.
#[derive(Clone, Copy)]
struct Shape {
    leases: usize,
    ttl: Duration,
    /// How long the leases are kept, in ttls.
    hold: f64,
    /// The number of busy loops for each core.
    busy_loops: usize,
    /// Whether the server stops answering for a while.
    away: bool,
}

impl Shape {
    fn of(leases: usize, ttl: u64, busy_loops: usize, plan: Plan) -> Self {
        let sizes = plan.sizes;
        Self {
            leases: sizes.leases.unwrap_or(leases),
            ttl: sizes.ttl.unwrap_or(Duration::from_secs(ttl)),
            hold: HOLD,
            busy_loops: sizes.busy_loops.unwrap_or(busy_loops),
            away: false,
        }
    }

    fn name(self) -> String {
        let (leases, ttl) = (self.leases as f64, self.ttl.as_secs_f64());
        let mut name = format!("{} leases, ttl {} s", grouped(leases), grouped(ttl));
        if self.busy_loops > 0 {
            let loops = if self.busy_loops == 1 {
                "loop"
            } else {
                "loops"
            };
            name += &format!(", {} busy {loops} a core", self.busy_loops);
        }
        if self.away {
            name += &format!(", server away for {} s, twice", grouped(ttl * AWAY));
        }
        name
    }
}

/// Adds the description of the figures that all these cases share.
macro_rules! about {
    ($text:literal) => {
        concat!(
            $text,
            " A process of its own acquires them with 256 tasks, then keeps all of them alive for ",
            "two ttls, and closes. `lost` is what the guards report before the close, and `live on ",
            "the server` what the server lists then."
        )
    };
}

pub const ABOUT_CALM: &str = about!("Leases that are kept alive, and no other load.");

pub async fn calm(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    on_mongo(mongo, Shape::of(10_000, 30, 0, plan)).await
}

pub const ABOUT_BUSY: &str = about!("Leases that are kept alive while busy loops run.");

pub async fn busy(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    on_mongo(mongo, Shape::of(10_000, 20, 12, plan)).await
}

pub const ABOUT_AWAY: &str = about!(
    "Leases that are kept alive while the server cannot be reached, twice for three tenths of a \
    ttl."
);

pub async fn away(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let shape = Shape {
        away: true,
        ..Shape::of(10_000, 20, 0, plan)
    };
    on_mongo(mongo, shape).await
}

pub const ABOUT_CLOSE: &str = about!("Leases that are closed as soon as all are granted.");

pub async fn close(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let shape = Shape {
        hold: 0.0,
        ..Shape::of(10_000, 60, 0, plan)
    };
    on_mongo(mongo, shape).await
}

pub const ABOUT_LIMIT: &str = about!(
    "More leases than the server may be able to renew in time. Raw is the bare driver that renews \
    documents like those of the locks, 1,000 with one statement, and with the given number of \
    statements under way at once. `bearable` is what the best of these renews in a ttl less the \
    clock margin, or all leases if that is less. `share kept` is how many of these were kept."
);

/// Compares the renewals with what the engine can do.
pub async fn limit(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let shape = Shape::of(50_000, 20, 0, plan);
    let mut result = CaseResult::default();
    let (mut sides, best) = kept_raw::renewals(mongo, shape.leases, plan).await?;
    let target = Target::on(mongo);
    let (mut figures, kept) = keep(&target, shape).await?;
    let time = shape.ttl.saturating_sub(MARGIN).as_secs_f64();
    let bearable = (best * time).min(shape.leases as f64);
    figures.extend([
        ("bearable", bearable),
        ("share kept, %", kept as f64 / bearable * 100.0),
    ]);
    sides.push(side(&figures));
    result.add(shape.name(), sides);
    Ok(result)
}

pub const ABOUT_SEARCH: &str = about!("Leases that are kept alive. A command is a request here.");

pub async fn on_search(engine: Engine, plan: Plan) -> Result<CaseResult> {
    let shape = Shape::of(2_000, 10, 0, plan);
    let mut result = CaseResult::default();
    let target = Target {
        engine,
        address: engine.address().context("no address")?,
        database: String::new(),
        place: format!("bench-{}", Uuid::new_v4()),
    };
    let kept = keep(&target, shape).await;
    // The index is also removed after an error.
    let removed = search::remove(&Bare::new(&target.address)?, &target.place).await;
    let (figures, _) = kept?;
    removed?;
    result.add(shape.name(), vec![side(&figures)]);
    Ok(result)
}

async fn on_mongo(mongo: &Mongo, shape: Shape) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let (figures, _) = keep(&Target::on(mongo), shape).await?;
    result.add(shape.name(), vec![side(&figures)]);
    Ok(result)
}

/// Converts the figures. It also prints them at once, because a case that loses leases deserves attention.
fn side(figures: &[(&'static str, f64)]) -> SideResult {
    for (name, value) in figures {
        eprintln!("    {name}: {}", grouped(*value));
    }
    SideResult::once("leasehold", figures)
}

/// Where the locks are stored.
struct Target {
    engine: Engine,
    address: String,
    database: String,
    place: String,
}

impl Target {
    fn on(mongo: &Mongo) -> Self {
        Self {
            engine: mongo.engine,
            address: mongo.uri.clone(),
            database: mongo.database.name().to_owned(),
            place: mongo.collection("leasehold").name().to_owned(),
        }
    }

    /// How many leases the server lists as live; `None` if it does not answer in time.
    async fn live(&self) -> Option<usize> {
        let list = async {
            let opened = counted::store(self.engine, &self.address, &self.database, &self.place);
            let leases = Leases::builder(opened.await?.0)
                .call_timeout(LISTING)
                .build();
            let live = leases.list(Filter::new().prefix(PREFIX).live());
            let count = live.try_fold(0, async |count, lock| Ok(count + lock.holders.len()));
            anyhow::Ok(count.await?)
        };
        match timeout(LISTING, list).await {
            Ok(Ok(live)) => Some(live),
            Ok(Err(error)) => {
                eprintln!("    the list failed: {error:#}");
                None
            }
            Err(_) => {
                eprintln!("    the list took too long");
                None
            }
        }
    }
}

/// Starts a process that keeps the leases. Returns the figures, and how many leases were kept until the end.
async fn keep(target: &Target, shape: Shape) -> Result<(Vec<(&'static str, f64)>, usize)> {
    let hold = shape.ttl.mul_f64(shape.hold);
    let mut order = Order {
        engine: target.engine,
        address: target.address.clone(),
        database: target.database.clone(),
        place: target.place.clone(),
        leases: shape.leases,
        ttl: shape.ttl,
        hold,
    };
    let proxy = if shape.away {
        let server = ClientOptions::parse(&target.address).await?.hosts;
        let proxy = Proxy::to(server.into_iter().next().context("no server")?).await?;
        order.address = format!("mongodb://127.0.0.1:{}/?directConnection=true", proxy.port);
        Some(proxy)
    } else {
        None
    };
    let busy = match shape.busy_loops {
        0 => None,
        loops => Some(Busy::start(loops)?),
    };
    let mut keeping = Keeping::start(order).await?;
    let acquired = keeping.acquired().await?;
    let outages = proxy.as_ref().map(|proxy| outages(proxy, shape.ttl));
    let (kept, ()) = tokio::try_join!(keeping.kept(), async {
        if let Some(outages) = outages {
            outages.await;
        }
        Ok(())
    })?;
    let load = load_average();
    let live = target.live().await;
    let closed = keeping.close().await?;
    drop(busy);
    let left = acquired.granted.saturating_sub(closed.lost);
    Ok((figures(shape, &acquired, &kept, &closed, live, load), left))
}

async fn outages(proxy: &Proxy, ttl: Duration) {
    let start = Instant::now();
    for goes in GOES {
        sleep_until((start + ttl.mul_f64(goes)).into()).await;
        proxy.set_away(true);
        eprintln!("    the server is away");
        sleep(ttl.mul_f64(AWAY)).await;
        proxy.set_away(false);
        eprintln!("    the server is back");
    }
}

fn figures(
    shape: Shape,
    acquired: &Acquired,
    kept: &Kept,
    closed: &Closed,
    live: Option<usize>,
    load: Option<f64>,
) -> Vec<(&'static str, f64)> {
    let mut figures = vec![
        ("granted", acquired.granted as f64),
        ("acquires failed", acquired.failed as f64),
        ("acquiring, s", acquired.seconds),
        ("commands to acquire", acquired.commands as f64),
        ("lost while acquiring", acquired.lost as f64),
        ("lost", closed.lost as f64),
    ];
    figures.extend(live.map(|live| ("live on the server", live as f64)));
    if !shape.ttl.mul_f64(shape.hold).is_zero() {
        let rate = kept.commands as f64 / kept.seconds;
        // A lease is renewed after a third of its ttl.
        let per_period = rate * shape.ttl.as_secs_f64() / 3.0;
        figures.extend([
            ("commands/s", rate),
            ("commands in a second, most", kept.commands_at_most),
            ("commands/period", per_period),
            ("leases/command", acquired.granted as f64 / per_period),
            ("CPU s/s", kept.cpu_seconds / kept.seconds),
            ("without a renewal, most, s", kept.longest_without_renewal),
            ("tasks, most", kept.tasks as f64),
        ]);
    }
    figures.extend([
        ("commands to close", closed.commands as f64),
        ("closing, s", closed.seconds),
        ("close timed out", f64::from(u8::from(!closed.ended))),
        ("RSS acquired, MB", acquired.rss),
        ("RSS, most, MB", closed.rss_at_most),
        ("RSS closed, MB", closed.rss),
        ("tasks closed", closed.tasks as f64),
    ]);
    figures.extend(load.map(|load| ("load average", load)));
    figures
}

/// The load average of the last minute.
fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
