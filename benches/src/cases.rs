//! The cases, and the order in which they are measured.

mod commands;
mod cycle;
mod dialects;
mod fairness;
mod fairness_polls;
mod fairness_writer;
mod handoff;
mod handoff_processes;
mod held;
mod kept;
mod kept_raw;
mod leader;
mod limiter;
mod live;
mod memory;
mod search;
mod search_crowd;
mod set;
pub mod sides;
pub mod sqlite;
mod sticky;
mod sticky_recall;
mod takeover;
mod waiters;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;

use crate::{
    cli::RunOptions,
    engines::{Engine, Mongo},
    machine::Machine,
    results::{self, CaseResult},
    rounds::{Plan, Sizes},
};

type OnMongo = for<'a> fn(&'a Mongo, Plan) -> BoxFuture<'a, Result<CaseResult>>;
type OnSearch = fn(Engine, Plan) -> BoxFuture<'static, Result<CaseResult>>;

/// The engines that a case needs, and the function that measures it.
enum Measure {
    Mongo(&'static [Engine], OnMongo),
    Search(OnSearch),
    Memory(fn() -> Result<CaseResult>),
    Alone(fn(Plan) -> BoxFuture<'static, Result<CaseResult>>),
}

pub struct Case {
    pub name: &'static str,
    /// What is measured, in a sentence or two. The report shows it.
    pub about: &'static str,
    measure: Measure,
}

const STANDALONE: &[Engine] = &[Engine::Mongodb];
const BOTH: &[Engine] = &[Engine::Mongodb, Engine::Replset];
const BOTH_AND_THREE: &[Engine] = &[Engine::Mongodb, Engine::Replset, Engine::Three];
const SEARCH: &[Engine] = &[Engine::Elasticsearch, Engine::Opensearch];

macro_rules! mongo {
    ($name:literal, $engines:expr, $measure:path, $about:path) => {
        Case {
            name: $name,
            about: $about,
            measure: Measure::Mongo($engines, |mongo, plan| Box::pin($measure(mongo, plan))),
        }
    };
}

macro_rules! search {
    ($name:literal, $measure:path, $about:path) => {
        Case {
            name: $name,
            about: $about,
            measure: Measure::Search(|engine, plan| Box::pin($measure(engine, plan))),
        }
    };
}

pub const CASES: &[Case] = &[
    mongo!("cycle", BOTH_AND_THREE, cycle::fresh, cycle::FRESH),
    mongo!("cycle-existing", BOTH, cycle::existing, cycle::EXISTING),
    mongo!("dialects", STANDALONE, dialects::measure, dialects::ABOUT),
    mongo!("held", STANDALONE, held::measure, held::ABOUT),
    mongo!("takeover", STANDALONE, takeover::measure, takeover::ABOUT),
    mongo!("handoff", STANDALONE, handoff::measure, handoff::ABOUT),
    mongo!(
        "handoff-processes",
        BOTH,
        handoff_processes::measure,
        handoff_processes::ABOUT
    ),
    mongo!("fairness", BOTH, fairness::measure, fairness::ABOUT),
    mongo!(
        "fairness-writer",
        BOTH,
        fairness_writer::measure,
        fairness_writer::ABOUT
    ),
    mongo!(
        "fairness-polls",
        BOTH,
        fairness_polls::measure,
        fairness_polls::ABOUT
    ),
    mongo!("leader", BOTH, leader::measure, leader::ABOUT),
    mongo!("kept", STANDALONE, kept::calm, kept::ABOUT_CALM),
    mongo!("kept-busy", STANDALONE, kept::busy, kept::ABOUT_BUSY),
    mongo!("kept-limit", STANDALONE, kept::limit, kept::ABOUT_LIMIT),
    mongo!("kept-away", STANDALONE, kept::away, kept::ABOUT_AWAY),
    mongo!("kept-close", STANDALONE, kept::close, kept::ABOUT_CLOSE),
    mongo!("waiters", BOTH, waiters::measure, waiters::ABOUT),
    mongo!("commands", STANDALONE, commands::measure, commands::ABOUT),
    mongo!("set", STANDALONE, set::measure, set::ABOUT),
    mongo!("limiter", STANDALONE, limiter::measure, limiter::ABOUT),
    mongo!("live", STANDALONE, live::measure, live::ABOUT),
    mongo!("sticky", STANDALONE, sticky::cycles, sticky::CYCLES),
    mongo!("sticky-index", STANDALONE, sticky::index, sticky::INDEX),
    mongo!(
        "sticky-recall",
        BOTH,
        sticky_recall::measure,
        sticky_recall::ABOUT
    ),
    search!("search-cycle", search::cycle, search::CYCLE),
    search!("search-held", search::held, search::HELD),
    search!("search-crowd", search_crowd::measure, search_crowd::ABOUT),
    search!("search-kept", kept::on_search, kept::ABOUT_SEARCH),
    Case {
        name: "sqlite",
        about: sqlite::ABOUT,
        measure: Measure::Alone(|plan| Box::pin(sqlite::measure(plan))),
    },
    Case {
        name: "memory",
        about: memory::BYTES,
        measure: Measure::Memory(memory::bytes),
    },
    Case {
        name: "allocations",
        about: memory::ALLOCATIONS,
        measure: Measure::Memory(memory::allocations),
    },
];

/// The names of the cases, in their order.
fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// Measures the chosen cases, and writes each result as soon as it is available.
pub async fn run(options: &RunOptions) -> Result<()> {
    ensure!(options.seconds > 0.0, "--seconds must be above 0");
    sizes(options)?;
    for name in &options.cases {
        let known = names().any(|known| known == name);
        let all = names().collect::<Vec<_>>().join(", ");
        ensure!(known, "no case '{name}': there are {all}");
    }
    let mut engines = Vec::new();
    for engine in Engine::ALL {
        match engine.address() {
            Some(_) => engines.push(engine),
            None => eprintln!(
                "{} is left out: {} is not set",
                engine.name(),
                engine.variable()
            ),
        }
    }
    let chosen = |case: &&Case| {
        options.cases.is_empty() || options.cases.iter().any(|name| name == case.name)
    };
    let needs_engine =
        |case: &Case| matches!(case.measure, Measure::Mongo(..) | Measure::Search(_));
    ensure!(
        !engines.is_empty() || !CASES.iter().filter(chosen).any(needs_engine),
        "no engine: set the address of one, or use scripts/with-engines"
    );
    let machine = Machine::look(&engines).await?;
    let machine = machine.with_those_before(&options.out.join("machine.json"));
    results::save(&options.out, "machine.json", &machine)?;
    for case in CASES.iter().filter(chosen) {
        measure(case, &engines, options).await?;
    }
    Ok(())
}

async fn measure(case: &Case, engines: &[Engine], options: &RunOptions) -> Result<()> {
    let plan = Plan {
        sizes: sizes(options)?,
        ..Plan::of(options.seconds)
    };
    let on: &[Engine] = match &case.measure {
        Measure::Mongo(on, _) => on,
        Measure::Search(_) => SEARCH,
        Measure::Memory(measure) => {
            eprintln!("{}", case.name);
            return keep(case, "memory".into(), measure()?, options);
        }
        Measure::Alone(measure) => {
            eprintln!("{}", case.name);
            return keep(case, "SQLite".into(), measure(plan).await?, options);
        }
    };
    for &engine in on.iter().filter(|engine| engines.contains(engine)) {
        eprintln!("{} on {}", case.name, engine.name());
        let begin = Instant::now();
        let plan = Plan {
            server: engine.server().await?,
            ..plan
        };
        let result = match &case.measure {
            Measure::Mongo(_, measure) => {
                let mongo = Mongo::new(engine).await?;
                let result = measure(&mongo, plan).await;
                // The clean-up also runs after an error.
                let cleaned = mongo.clean_up().await;
                result.and_then(|result| cleaned.map(|()| result))
            }
            Measure::Search(measure) => measure(engine, plan).await,
            Measure::Memory(_) | Measure::Alone(_) => continue,
        };
        let result = result.with_context(|| format!("{} on {}", case.name, engine.name()))?;
        keep(case, engine.label(), result, options)?;
        eprintln!("    {:.0} s", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

fn keep(case: &Case, engine: String, result: CaseResult, options: &RunOptions) -> Result<()> {
    let result = CaseResult {
        case: case.name.into(),
        engine,
        seconds: options.seconds,
        ..result
    };
    result.save(&options.out)
}

fn sizes(options: &RunOptions) -> Result<Sizes> {
    ensure!(options.leases != Some(0), "--leases must be above 0");
    let ttl = options.ttl.map(Duration::try_from_secs_f64).transpose();
    Ok(Sizes {
        leases: options.leases,
        ttl: ttl.context("--ttl is no time")?,
        busy_loops: options.busy,
    })
}
