//! A run of the laboratory: clients, faults, and the checkers at the end.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use leasehold::store::LeaseId;
use tempfile::TempDir;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    HANGS,
    broken::Wrong,
    check::{self, Kind, Violations},
    client::Task,
    cluster::Cluster,
    crowd::Crowd,
    documents::Documents,
    guarded,
    history::{self, Clock, Event, Recorder, Time},
    ledger::Ledger,
    left,
    network::Network,
    plan::{CLOCKS, Plan},
    probe::{self, Probe},
    report::Report,
    watch::Watch,
    work::{CONTENDED, Pace, QUEUED, TTL},
};

pub const ENGINES: [&str; 7] = [
    "mongodb",
    "mongodb-replset",
    "mongodb-three",
    "mongodb-sharded",
    "elasticsearch",
    "opensearch",
    "elasticsearch-three",
];
/// The number under which the laboratory itself has an address. The clients have the numbers before it.
const LABORATORY: usize = CLOCKS.len();
/// How much later a process on a busy machine does what it has heard of.
const SLACK: Duration = Duration::from_secs(1);
/// The pause between two requests of a waiter, and between two looks of a process for others that wait for its keys.
const LOOKS: Duration = Duration::from_secs(1);
/// How long a key that is always waited for may go without a grant, in multiples of a ttl and a pause: a holder whose
/// grant was late may die, and the next holder may die too. The longest time in which the laboratory was not granted
/// its own leases is added.
const UNAVAILABLE: u32 = 4;
/// The factor for the classic dialect of `MongoStore`, in which an operation starts again if another one got in
/// between. The answer times that are measured before a run come from keys without contention, so they are shorter:
/// with a time-out of four times as long, most requests of the waiters of one key timed out.
const CLASSIC: u32 = 2;

/// An engine, and the program of its clients.
pub struct Setup {
    engine: &'static str,
    program: PathBuf,
    network: Network,
    cluster: Cluster,
}

impl Setup {
    pub async fn start(engine: &'static str, program: &Path) -> Result<Self> {
        let network = Network::default();
        Ok(Self {
            engine,
            program: program.to_owned(),
            cluster: Cluster::start(engine, &network).await?,
            network,
        })
    }

    pub async fn stop(mut self) {
        self.cluster.stop().await;
    }

    /// Runs a plan to its end.
    pub async fn run(&mut self, plan: Plan) -> Result<Report> {
        let (clock, ledger) = (Clock::of_this_machine(), Ledger::of(plan.wrong));
        let histories = TempDir::new()?;
        self.cluster.disguise_routers(plan.disguise()).await?;
        let task = self.task(&plan, &ledger).await?;
        self.network.alters(plan.altered());
        let rollbacks = self.cluster.rollbacks()?;
        let probe = Probe::start(task.store().await?, task.pace, clock);
        let mut places = Vec::new();
        for (client, minutes) in CLOCKS.into_iter().enumerate() {
            let address = self.cluster.address(client, task.pace.call_timeout);
            places.push((address.await?, minutes));
        }
        let (program, folder) = (self.program.clone(), histories.path());
        let mut crowd = Crowd::start(program, task.clone(), &self.network, folder.into(), places)?;

        let recorder = Recorder::to_file(clock, &histories.path().join("servers"))?;
        recorder.saw(Event::RecallsTake {
            longest: recalls_take(task.pace).as_micros() as Time,
        });
        let watch = Watch::of(self.engine, histories.path(), &ledger, plan.locks_only);
        let (start, began) = (Instant::now(), clock.now());
        let faults = plan.faults(self.engine);
        let servers_suffer = async {
            for (at, fault) in faults {
                sleep_until(start + at).await;
                let from = clock.now();
                recorder.saw(Event::ServerSuffers { at: from });
                let suffering = self.cluster.suffer(fault, &task.name).await;
                suffering.with_context(|| format!("{fault:?}"))?;
                probe.is_granted_after(clock.now()).await?;
                recorder.saw(Event::ServersAreBack { at: clock.now() });
                if fault.may_undo_writes() {
                    let (to, ttl) = (clock.now(), task.pace.ttl.as_micros() as Time);
                    recorder.saw(if self.engine.starts_with("mongodb") {
                        Event::ReleasesAtRisk { from, to, ttl }
                    } else {
                        // The search engines acknowledge a release only when each copy has it.
                        Event::ReadsAtRisk { from, to }
                    });
                }
                watch.server_is_back(fault.name())?;
            }
            anyhow::Ok(())
        };
        let clients_suffer = async {
            for (at, client, mishap) in plan.mishaps() {
                sleep_until(start + at).await;
                let suffering = crowd.suffer(client, mishap).await;
                suffering.with_context(|| format!("{mishap:?} of {client}"))?;
                watch.happened(mishap.name());
            }
            anyhow::Ok(())
        };
        let happens = async {
            tokio::try_join!(clients_suffer, servers_suffer)?;
            sleep_until(start + plan.lasts).await;
            // What is missing is reported below.
            let enough = timeout(
                HANGS,
                watch.until_enough(least_orders(task.pace), plan.least_late_writes()),
            )
            .await;
            enough.unwrap_or(Ok(()))
        };
        let ran = tokio::select! {
            ended = happens => ended,
            caught = watch.until_caught(plan.wrong) => caught,
            failed = watch.tell_progress() => failed,
        };
        let run = (began, clock.now());
        let mut report = Report::of(self.engine, plan, task.pace);
        report.lasted = start.elapsed();
        report.faults = watch.faults();

        self.network.is_fair();
        report.slowest = probe.longest_gap(run);
        probe.stop().await;
        let mut violations = Violations::new();
        match ran {
            Err(error) => violations.push(Kind::Run.of(format!("{error:#}"))),
            Ok(()) if plan.wrong == Wrong::Nothing => match crowd.close().await {
                Ok(closed) => {
                    // Requests that killed clients have sent do not arrive after this.
                    self.network.cuts_clients();
                    violations.extend(left::by(&task, &closed, report.slowest).await?);
                    let documents = Documents::of(&task).await?;
                    let read = guarded::read_at_the_end(&documents, &recorder);
                    timeout(HANGS, read)
                        .await
                        .context("no document is read")??;
                }
                Err(error) => violations.push(Kind::Run.of(format!("{error:#}"))),
            },
            Ok(()) => {}
        }
        // Clients that were not closed are killed.
        drop(crowd);
        violations.extend(watch.found()?);
        let events = history::read_all(histories.path())?;
        report.count(&events, &ledger.accounts());
        let after = match plan.wrong {
            // The run may have ended while the member that must roll back its writes is still cut off.
            Wrong::OneMemberAcknowledges => self.cluster.rolls_back(rollbacks).await?,
            _ => self.cluster.rollbacks()?,
        };
        report.rollbacks = after.map(|after| after - rollbacks.unwrap_or_default());
        if plan.wrong == Wrong::Nothing {
            report.longest_gap = check::longest_gap(&[CONTENDED, QUEUED], &events, run);
            violations.extend(unavailable(&report));
            violations.extend(watch.missing()?);
            if report.orders < least_orders(task.pace) {
                let text = format!("there were {} orders to judge", report.orders);
                violations.push(Kind::Run.of(text));
            }
            let late = report.guarded.late_without;
            if late < plan.least_late_writes() {
                let text = format!("there were {late} late writes without a guard");
                violations.push(Kind::Run.of(text));
            }
            // With this many cuts, one of them must have met writes on their way.
            if report.cut_off() >= 3 && report.rollbacks == Some(0) {
                violations.push(Kind::Run.of("there was not a rollback"));
            }
            if !violations.is_empty() {
                let kept = histories.keep();
                violations.push(Kind::Run.of(format!("the histories are in {}", kept.display())));
            }
        }
        report.violations = violations;
        Ok(report)
    }

    /// The settings that all clients share. The servers are ready.
    async fn task(&self, plan: &Plan, ledger: &Ledger) -> Result<Task> {
        let mut task = Task {
            engine: self.engine.to_owned(),
            address: self.cluster.address(LABORATORY, HANGS).await?,
            name: format!("locks-{}", LeaseId::random()),
            ledger: ledger.serve().await?.to_string(),
            history: PathBuf::new(),
            seed: plan.seed,
            wrong: plan.wrong,
            client: 0,
            clock: 0,
            workers: plan.workers,
            pace: Pace::FAST,
            dawdles: plan.dawdles,
        };
        task.prepare().await?;
        Documents::of(&task).await?.create().await?;
        let answers = probe::measure(task.store().await?).await?;
        let slowest = match self.engine {
            // With the classic dialect, a waiter would have been slower.
            "mongodb-sharded" if plan.wrong == Wrong::Nothing => CLASSIC * answers,
            _ => answers,
        };
        task.pace = plan.pace(Pace::of(slowest));
        let address = self.cluster.address(LABORATORY, task.pace.call_timeout);
        task.address = address.await?;
        Ok(task)
    }
}

/// The minimum number of orders that must be judged in a run. If the servers are slow, most places end before the next
/// answer arrives, so it is 0.
fn least_orders(pace: Pace) -> usize {
    if pace.ttl == TTL { 10 } else { 0 }
}

/// How long a key may stay with a process while another one waits for it. Two looks for it may fail, and the pause
/// before the first of them may just have begun. A process that is stopped meanwhile, or whose requests get no answer,
/// loses its lease after its ttl.
fn recalls_take(pace: Pace) -> Duration {
    LOOKS + 3 * pace.call_timeout.max(LOOKS) + pace.ttl + SLACK
}

/// Checks that no key went without a grant for too long, compared with the laboratory's own leases.
fn unavailable(report: &Report) -> Violations {
    let most = UNAVAILABLE * (report.pace.ttl + LOOKS) + report.slowest;
    if report.longest_gap <= most {
        return Violations::new();
    }
    let text = format!(
        "nobody was granted a key for {:?}, and the laboratory its own for {:?} at the longest",
        report.longest_gap, report.slowest
    );
    vec![Kind::Unavailable.of(text)]
}
