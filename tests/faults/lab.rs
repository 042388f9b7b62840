//! A run of the laboratory: an engine, clients, faults, and at the end the checkers.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use leasehold::{Filter, LeaseId, Leases};
use parking_lot::Mutex;
use rustix::process::{Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    check,
    client::{Client, Task},
    engine::{self, Engine},
    history::{self, Clock, Time},
    ledger::Ledger,
    schedule::{self, Fault, Target, WHILE},
    weather::Weather,
    work::{CONTENDED, TTL},
};

const CLIENTS: usize = 4;
/// Of the clients, in minutes.
const CLOCKS: [i32; CLIENTS] = [0, 5, -5, 0];
/// After an engine is back, clients find it within this time.
const RECOVERY: Duration = Duration::from_secs(15);
/// How long a key that is waited for is without a grant after its holder died: the rest of its ttl, the
/// time between two looks of those who wait, and what a loaded machine and bad weather over several of
/// them can make of it. The report says how long it was.
const LONGEST_GAP: Duration = Duration::from_secs(3 + 1 + 16);

/// What is tried, for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub engine: &'static str,
    pub lasts: Duration,
    pub seed: u64,
    /// The engine suffers once in this time.
    pub period: Duration,
}

impl Plan {
    fn target(&self) -> Target {
        match self.engine {
            "mongodb-three" => Target::Set,
            _ => Target::Server,
        }
    }
}

/// What came of it.
pub struct Report {
    plan: Plan,
    faults: BTreeMap<&'static str, usize>,
    pub operations: u64,
    longest_gap: Duration,
    written: u64,
    refused: u64,
    pub violations: Vec<String>,
}

/// A row of the table in `docs/evidence.md`.
impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan {
            engine,
            lasts,
            seed,
            ..
        } = self.plan;
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(name, times)| format!("{times} {name}"))
            .collect();
        write!(
            f,
            "| {engine} | {} s | {seed} | {} | {} | {} | {} | {:.1} s | {} |",
            lasts.as_secs(),
            faults.join(", "),
            self.operations,
            self.written,
            self.refused,
            self.longest_gap.as_secs_f64(),
            self.violations.len(),
        )
    }
}

pub const HEADER: &str = "\
| engine | time | seed | faults | operations | writes | writes that the fence refused | longest time without a grant | violations |
|---|---|---|---|---|---|---|---|---|";

struct Lab {
    plan: Plan,
    engine: Engine,
    weather: Vec<Weather>,
    tasks: Vec<Task>,
    clients: Vec<Option<Client>>,
    /// How many clients were started.
    started: u64,
    outages: Arc<Mutex<Vec<(Time, Time)>>>,
    clock: Clock,
    histories: TempDir,
}

/// Runs a plan to its end.
pub async fn run(plan: Plan) -> Result<Report> {
    let ledger = Ledger::default();
    let mut lab = Lab::open(plan, &ledger).await?;
    let schedule = schedule::faults(plan.seed, plan.target(), plan.lasts, CLIENTS, plan.period);
    let start = Instant::now();
    let mut faults = BTreeMap::new();
    for (at, fault) in schedule {
        sleep_until(start + at).await;
        *faults.entry(fault.name()).or_default() += 1;
        lab.meet(fault)
            .await
            .with_context(|| format!("{fault:?}"))?;
    }
    sleep_until(start + plan.lasts).await;
    let mut violations = lab.close().await?;

    let mut events = Vec::new();
    for file in std::fs::read_dir(lab.histories.path())? {
        events.extend(history::read(&file?.path())?);
    }
    violations.extend(check::all(&events));
    let accounts = ledger.accounts();
    if accounts.lost > 0 {
        violations.push(format!("{} writes were lost", accounts.lost));
    }
    let outages = lab.outages.lock().clone();
    let longest_gap = check::longest_gap(CONTENDED, &events, &outages);
    if longest_gap > LONGEST_GAP {
        violations.push(format!("nobody was granted a key for {longest_gap:?}"));
    }
    Ok(Report {
        plan,
        faults,
        operations: check::operations(&events),
        longest_gap,
        written: accounts.written,
        refused: accounts.refused,
        violations,
    })
}

impl Lab {
    async fn open(plan: Plan, ledger: &Ledger) -> Result<Self> {
        let engine = Engine::start(plan.engine).await?;
        let histories = TempDir::new()?;
        let name = format!("locks-{}", LeaseId::random());
        let ledger = ledger.serve().await?.to_string();
        let mut lab = Self {
            plan,
            weather: Vec::new(),
            tasks: Vec::new(),
            clients: Vec::new(),
            started: 0,
            outages: Arc::default(),
            clock: Clock::of_this_machine(),
            histories,
            engine,
        };
        for _ in 0..CLIENTS {
            let weather = Weather::to(lab.engine.host()).await;
            // A connection to a server that stands still is not given up by the driver.
            let options = "serverSelectionTimeoutMS=900&maxPoolSize=500";
            let address = match plan.engine {
                "elasticsearch" | "opensearch" => format!("http://{}", weather.address),
                // The members tell clients their own addresses.
                "mongodb-three" => format!("{}&{options}", lab.engine.address),
                _ => format!(
                    "mongodb://{}/?directConnection=true&{options}",
                    weather.address
                ),
            };
            lab.tasks.push(Task {
                engine: plan.engine.to_owned(),
                address,
                name: name.clone(),
                ledger: ledger.clone(),
                history: Default::default(),
                seed: 0,
            });
            lab.weather.push(weather);
            lab.clients.push(None);
        }
        lab.tasks[0].prepare().await?;
        for number in 0..CLIENTS {
            lab.start(number)?;
        }
        Ok(lab)
    }

    fn start(&mut self, number: usize) -> Result<()> {
        self.started += 1;
        let task = &mut self.tasks[number];
        task.seed = self.plan.seed * 1_000 + self.started;
        task.history = self.histories.path().join(self.started.to_string());
        self.clients[number] = Some(Client::start(task, CLOCKS[number])?);
        Ok(())
    }

    fn client(&self, number: usize) -> Result<&Client> {
        self.clients[number].as_ref().context("no client")
    }

    async fn meet(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Late(client, by) => {
                let weather = self.weather[client].clone();
                weather.is_late(by);
                tokio::spawn(async move {
                    sleep(WHILE).await;
                    weather.is_late(Duration::ZERO);
                });
            }
            Fault::Lost(client, percent) => {
                let weather = self.weather[client].clone();
                weather.loses(percent);
                tokio::spawn(async move {
                    sleep(WHILE).await;
                    weather.loses(0);
                });
            }
            Fault::Cut(client) => self.weather[client].cut(),
            Fault::Dark(client, time) => {
                let weather = self.weather[client].clone();
                weather.is_dark(true);
                tokio::spawn(async move {
                    sleep(time).await;
                    weather.is_dark(false);
                });
            }
            Fault::Kill(client) => {
                let killed = self.clients[client].take().context("no client")?;
                killed.kill().await?;
                self.start(client)?;
            }
            Fault::Pause(client, time) => {
                // One at a time, so that the others go on.
                self.client(client)?.signal(Signal::STOP)?;
                sleep(time).await;
                self.client(client)?.signal(Signal::CONT)?;
            }
            Fault::Restart | Fault::PausePrimary(_) | Fault::StepDown => {
                let from = self.clock.now();
                self.meet_engine(fault).await?;
                let to = self.clock.now() + RECOVERY.as_micros() as Time;
                self.outages.lock().push((from, to));
            }
        }
        Ok(())
    }

    async fn meet_engine(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::PausePrimary(time) => {
                let primary = engine::primary(&self.engine.address).await?;
                let process = engine::process_of(&primary)?;
                kill_process(process, Signal::STOP)?;
                sleep(time).await;
                kill_process(process, Signal::CONT)?;
            }
            Fault::StepDown => engine::step_down(&self.engine.address).await?,
            _ => {
                self.engine.kill().await?;
                self.engine.restart().await?;
            }
        }
        Ok(())
    }

    /// Ends the faults and the clients, and looks at what is left.
    async fn close(&mut self) -> Result<Vec<String>> {
        self.weather.iter().for_each(Weather::is_fair);
        // What is on its way arrives, so that all of them can close.
        sleep(Duration::from_secs(2)).await;
        let mut violations = Vec::new();
        for client in self.clients.iter_mut().filter_map(Option::take) {
            if let Err(error) = client.close().await {
                violations.push(format!("{error:#}"));
            }
        }
        let leases = Leases::new(self.tasks[0].store().await?);
        let end = Instant::now() + TTL + Duration::from_secs(5);
        loop {
            let left: Vec<_> = leases.list(Filter::new().live()).try_collect().await?;
            if left.is_empty() {
                return Ok(violations);
            }
            if Instant::now() > end {
                violations.push(format!("locks are left: {left:?}"));
                return Ok(violations);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}
