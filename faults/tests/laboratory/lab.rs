//! A run of the laboratory: servers, clients, faults, and at the end the checkers.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use leasehold::{Filter, LeaseId, Leases};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    broken::Wrong,
    check::{self, Kind, Violations},
    client::Task,
    cluster::Cluster,
    crowd::Crowd,
    history::{self, Claim, Clock, Event},
    ledger::Ledger,
    network::Network,
    report::Report,
    schedule,
    weather::Altered,
    work::{CAPACITY, CONTENDED, READERS, TTL},
};

/// The clocks of the clients, in minutes.
const CLOCKS: [i32; 4] = [0, 5, -5, 0];
/// How long a key that is waited for is without a grant after its holder died: the rest of its ttl, the
/// time between two looks of those who wait, and what a loaded machine and bad weather over several of
/// them can make of it. The report says how long it was.
const LONGEST_GAP: Duration = Duration::from_secs(3 + 1 + 16);
/// How long a run goes on after the last thing that the servers suffered.
const AFTERWARDS: Duration = Duration::from_secs(6);
/// Between two looks at whether what is wrong was caught.
const LOOK: Duration = Duration::from_secs(3);
/// A member that was cut off is one of the set again after this time.
const REJOINS_WITHIN: Duration = Duration::from_secs(60);

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
        network.alters(Altered::MajorityToOne);
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
    let clock = Clock::of_this_machine();
    let mut crowd = Crowd::start(task.clone(), &network, histories.path().into(), clients)?;

    let mut report = Report::of(plan);
    let (start, began) = (Instant::now(), clock.now());
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
            let suffering = crowd.suffer(client, mishap).await;
            suffering.with_context(|| format!("{mishap:?} of {client}"))?;
            suffered.push(mishap.name());
        }
        anyhow::Ok(())
    };
    let servers_suffer = async {
        for (at, fault) in faults {
            sleep_until(start + at).await;
            let suffering = cluster.suffer(fault, &task.name).await;
            suffering.with_context(|| format!("{fault:?}"))?;
            broken.push(fault.name());
        }
        // What comes after the last one is to be seen too.
        sleep_until((start + plan.lasts).max(Instant::now() + AFTERWARDS)).await;
        anyhow::Ok(())
    };
    let found_so_far = || match plan.wrong {
        Wrong::Nothing => Ok(Violations::new()),
        _ => found(histories.path(), &ledger),
    };
    let caught = async {
        while !plan.wrong.is_in(&found_so_far()?) {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    let ran = tokio::select! {
        ended = async { tokio::try_join!(clients_suffer, servers_suffer) } => ended.map(drop),
        caught = caught => caught,
    };
    let ended = clock.now();
    report.lasted = start.elapsed();
    report.faults(suffered.into_iter().chain(broken));

    network.is_fair();
    let mut violations = Vec::new();
    match ran {
        Err(error) => violations.push(Kind::Run.of(format!("{error:#}"))),
        Ok(()) if plan.wrong == Wrong::Nothing => {
            // What is on its way arrives, so that all of them can close.
            sleep(Duration::from_secs(2)).await;
            match crowd.close().await {
                Ok(closed) => violations.extend(left(&task, &closed).await?),
                Err(error) => violations.push(Kind::Run.of(format!("{error:#}"))),
            }
        }
        Ok(()) => {}
    }
    // Whoever was not closed is killed.
    drop(crowd);
    violations.extend(found(histories.path(), &ledger)?);
    let events = history::read_all(histories.path())?;
    report.operations = check::operations(&events);
    report.permits = count(&events, |event| matches!(event, Event::Permit { .. }));
    let accounts = ledger.accounts();
    (report.written, report.refused) = (accounts.written, accounts.refused);
    report.rollbacks = match plan.wrong {
        // It may have been caught while the member that is to take its writes back is still cut off.
        Wrong::OneMemberAcknowledges => cluster.rolls_back(REJOINS_WITHIN).await?,
        _ => cluster.rollbacks()?,
    };
    if plan.wrong == Wrong::Nothing {
        let outages = cluster.outages.lock();
        report.longest_gap = check::longest_gap(CONTENDED, &events, (began, ended), &outages);
        if report.longest_gap > LONGEST_GAP {
            let gap = report.longest_gap;
            let text = format!("nobody was granted a key for {gap:?}");
            violations.push(Kind::Unavailable.of(text));
        }
        violations.extend(missing(&report, &events));
    }
    if plan.wrong == Wrong::Nothing && !violations.is_empty() {
        let kept = histories.keep();
        violations.push(Kind::Run.of(format!("the histories are in {}", kept.display())));
    }
    report.violations = violations;
    Ok(report)
}

/// What did not happen in a run, so that it shows nothing.
fn missing(report: &Report, events: &[Event]) -> Violations {
    let granted = |claim| {
        count(
            events,
            |event| matches!(event, Event::Granted { claim: it, .. } if *it == claim),
        )
    };
    let held = count(events, |event| matches!(event, Event::Held { .. }));
    let released = count(events, |event| matches!(event, Event::Released { .. }));
    let mut happened = vec![
        ("an exclusive grant", granted(Claim::All)),
        ("a shared grant", granted(Claim::OneOf(READERS))),
        ("a grant of permits", granted(Claim::OneOf(CAPACITY))),
        ("a refusal", held),
        ("a release", released),
        ("a permit of a limiter", report.permits),
        ("a write under a fence", report.written),
    ];
    // Enough cuts that one of them has met writes on their way.
    if report.cut_off() >= 3
        && let Some(rollbacks) = report.rollbacks
    {
        happened.push(("a rollback", rollbacks as u64));
    }
    happened.retain(|(_, times)| *times == 0);
    let missing = happened.iter();
    missing
        .map(|(what, _)| Kind::Run.of(format!("there was not {what}")))
        .collect()
}

/// What the histories and the ledger show to be wrong.
fn found(histories: &Path, ledger: &Ledger) -> Result<Violations> {
    let mut violations = check::all(&history::read_all(histories)?);
    let lost = ledger.accounts().lost;
    if lost > 0 {
        violations.push(Kind::LostWrite.of(format!("{lost} writes were lost")));
    }
    Ok(violations)
}

fn count(events: &[Event], which: impl Fn(&Event) -> bool) -> u64 {
    events.iter().filter(|event| which(event)).count() as u64
}

/// The locks of those that have closed, and all that are there a ttl later.
async fn left(task: &Task, closed: &[PathBuf]) -> Result<Violations> {
    let mut ours = HashSet::new();
    for history in closed {
        for event in history::read(history)? {
            if let Event::Granted { lease, .. } = event {
                ours.insert(lease);
            }
        }
    }
    let leases = Leases::new(task.store().await?);
    let end = Instant::now() + TTL + Duration::from_secs(5);
    loop {
        let left: Vec<_> = leases.list(Filter::new().live()).try_collect().await?;
        let holders = left.iter().flat_map(|lock| &lock.holders);
        let of_closed = holders.filter(|it| ours.contains(&it.lease.to_string()));
        if of_closed.count() > 0 || (!left.is_empty() && Instant::now() > end) {
            return Ok(vec![Kind::Left.of(format!("locks are left: {left:?}"))]);
        }
        if left.is_empty() {
            return Ok(Violations::new());
        }
        sleep(Duration::from_millis(200)).await;
    }
}
