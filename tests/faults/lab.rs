//! A run of the laboratory: servers, clients, faults, and at the end the checkers.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use leasehold::{Filter, LeaseId, Leases};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    broken::Wrong,
    check,
    client::Task,
    cluster::Cluster,
    crowd::Crowd,
    history::{self, Event},
    ledger::Ledger,
    network::Network,
    report::Report,
    schedule,
    work::{CONTENDED, TTL},
};

/// The clocks of the clients, in minutes.
const CLOCKS: [i32; 4] = [0, 5, -5, 0];
/// How long a key that is waited for is without a grant after its holder died: the rest of its ttl, the
/// time between two looks of those who wait, and what a loaded machine and bad weather over several of
/// them can make of it. The report says how long it was.
const LONGEST_GAP: Duration = Duration::from_secs(3 + 1 + 16);
/// Between two looks at whether what is wrong was caught.
const LOOK: Duration = Duration::from_secs(3);

/// What is tried, for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub engine: &'static str,
    pub lasts: Duration,
    pub seed: u64,
    /// The servers suffer once in this time.
    pub period: Duration,
    pub workers: u64,
    /// One stay in so many is about as long as the ttl, or longer.
    pub dawdles: u32,
    /// What is wrong on purpose. Such a run ends when it was caught.
    pub wrong: Wrong,
}

impl Plan {
    fn ttl(&self) -> Duration {
        match self.wrong {
            // Longer than a set on a loaded machine needs to choose another primary.
            Wrong::OneMemberAcknowledges => 4 * TTL,
            _ => TTL,
        }
    }
}

/// Runs a plan to its end.
pub async fn run(plan: Plan) -> Result<Report> {
    let network = Network::default();
    if plan.wrong == Wrong::OneMemberAcknowledges {
        network.turns_majority_to_one();
    }
    let mut cluster = Cluster::start(plan.engine, &network).await?;
    let ledger = Ledger::of(plan.wrong);
    let histories = TempDir::new()?;
    let mut addresses = Vec::new();
    for client in 0..CLOCKS.len() {
        addresses.push(cluster.address(plan.engine, client).await?);
    }
    let task = Task {
        engine: plan.engine.to_owned(),
        address: addresses[0].clone(),
        name: format!("locks-{}", LeaseId::random()),
        ledger: ledger.serve().await?.to_string(),
        history: Default::default(),
        seed: plan.seed,
        wrong: plan.wrong,
        clock: 0,
        workers: plan.workers,
        ttl: plan.ttl(),
        dawdles: plan.dawdles,
    };
    task.prepare().await?;
    let clients = addresses.into_iter().zip(CLOCKS).collect();
    let mut crowd = Crowd::start(task.clone(), &network, histories.path().into(), clients)?;

    let mut report = Report::of(plan);
    let start = Instant::now();
    let mishaps = schedule::mishaps(plan.seed, plan.lasts, CLOCKS.len());
    let faults = match plan.wrong {
        // What one member acknowledged is lost with that member.
        Wrong::OneMemberAcknowledges => schedule::cut_offs(plan.lasts, plan.period),
        _ => schedule::faults(plan.seed, plan.engine, plan.lasts, plan.period),
    };
    let (mut suffered, mut broken) = (Vec::new(), Vec::new());
    let clients_suffer = async {
        for (at, client, mishap) in mishaps {
            sleep_until(start + at).await;
            suffered.push(mishap.name());
            let suffering = crowd.suffer(client, mishap).await;
            suffering.with_context(|| format!("{mishap:?} of {client}"))?;
        }
        anyhow::Ok(())
    };
    let servers_suffer = async {
        for (at, fault) in faults {
            sleep_until(start + at).await;
            broken.push(fault.name());
            let suffering = cluster.suffer(fault, &task.name).await;
            suffering.with_context(|| format!("{fault:?}"))?;
        }
        sleep_until(start + plan.lasts).await;
        anyhow::Ok(())
    };
    let caught = async {
        while plan.wrong == Wrong::Nothing || found(histories.path(), &ledger)?.is_empty() {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = async { tokio::try_join!(clients_suffer, servers_suffer) } => drop(ended?),
        caught = caught => caught?,
    }
    report.lasted = start.elapsed();
    report.faults(suffered.into_iter().chain(broken));

    network.is_fair();
    if plan.wrong == Wrong::Nothing {
        // What is on its way arrives, so that all of them can close.
        sleep(Duration::from_secs(2)).await;
        report.violations = crowd.close().await;
        report.violations.extend(left(&task).await?);
        report.rollbacks = cluster.rollbacks()?;
    }
    // Whoever was not closed is killed.
    drop(crowd);
    let events = history::read_all(histories.path())?;
    report.violations.extend(found(histories.path(), &ledger)?);
    report.operations = check::operations(&events);
    report.permits = count(&events, |event| matches!(event, Event::Permit { .. }));
    let accounts = ledger.accounts();
    (report.written, report.refused) = (accounts.written, accounts.refused);
    report.longest_gap = check::longest_gap(CONTENDED, &events, &cluster.outages.lock());
    if report.longest_gap > LONGEST_GAP {
        let gap = report.longest_gap;
        report
            .violations
            .push(format!("nobody was granted a key for {gap:?}"));
    }
    Ok(report)
}

/// What the histories and the ledger show to be wrong.
fn found(histories: &Path, ledger: &Ledger) -> Result<Vec<String>> {
    let mut violations = check::all(&history::read_all(histories)?);
    let lost = ledger.accounts().lost;
    if lost > 0 {
        violations.push(format!("{lost} writes were lost"));
    }
    Ok(violations)
}

fn count(events: &[Event], which: impl Fn(&Event) -> bool) -> u64 {
    events.iter().filter(|event| which(event)).count() as u64
}

/// The locks that nobody released and that are not over, a ttl after the last client has closed.
async fn left(task: &Task) -> Result<Option<String>> {
    let leases = Leases::new(task.store().await?);
    let end = Instant::now() + TTL + Duration::from_secs(5);
    loop {
        let left: Vec<_> = leases.list(Filter::new().live()).try_collect().await?;
        if left.is_empty() {
            return Ok(None);
        }
        if Instant::now() > end {
            return Ok(Some(format!("locks are left: {left:?}")));
        }
        sleep(Duration::from_millis(200)).await;
    }
}
