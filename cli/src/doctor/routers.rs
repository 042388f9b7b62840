//! The clocks of the routers of a sharded cluster.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;
use mongodb::{
    Client,
    bson::doc,
    options::{SelectionCriteria, ServerAddress},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    finding::{Finding, Grade},
    trials::FAR_OFF,
};

/// How often the driver is asked which routers it knows. It may not have found all routers of the address when it finds
/// the first.
const LOOKS: usize = 5;
/// The pause between two of these questions.
const PAUSE: Duration = Duration::from_millis(200);
/// How often each router is asked for its time. The answer that came fastest counts.
const PROBES: usize = 3;
/// How long a router may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The time of a router, compared with that of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    ahead: TimeDelta,
    /// How far `ahead` may be wrong: half of the round trip.
    give_or_take: TimeDelta,
}

impl Probe {
    fn of(before: DateTime<Utc>, time: DateTime<Utc>, after: DateTime<Utc>) -> Self {
        let half = (after - before).abs() / 2;
        Self {
            ahead: time - (before + half),
            give_or_take: half,
        }
    }
}

/// Finds out how far the clock of each router is from this host's. A router that the driver cannot reach is left out.
pub(super) async fn clocks(client: &Client) -> Finding {
    let routers = known(client).await;
    let probes = join_all(routers.iter().map(|router| ask(client, router))).await;
    let found: BTreeMap<_, _> = routers
        .iter()
        .map(ToString::to_string)
        .zip(probes)
        .collect();
    finding(&found)
}

/// The routers in the address that the driver has found.
async fn known(client: &Client) -> Vec<ServerAddress> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for look in 0..LOOKS {
        if look > 0 {
            sleep(PAUSE).await;
        }
        let seen = seen.clone();
        // The driver shows each server that it may select, and then selects one.
        let any = SelectionCriteria::Predicate(Arc::new(move |server| {
            let mut seen = seen.lock();
            if !seen.contains(server.address()) {
                seen.push(server.address().clone());
            }
            true
        }));
        let admin = client.database("admin");
        let ping = admin
            .run_command(doc! { "ping": 1 })
            .selection_criteria(any);
        // A failure leaves out no router: the driver has shown them before it sent the command.
        let _ = timeout(ANSWER_TIMEOUT, ping).await;
    }
    let seen = seen.lock();
    seen.clone()
}

/// Asks one router for its time. `None` if it does not answer.
async fn ask(client: &Client, router: &ServerAddress) -> Option<Probe> {
    let mut probes = Vec::new();
    for _ in 0..PROBES {
        let wanted = router.clone();
        let this = SelectionCriteria::Predicate(Arc::new(move |it| *it.address() == wanted));
        let admin = client.database("admin");
        let hello = admin
            .run_command(doc! { "hello": 1 })
            .selection_criteria(this);
        let before = Utc::now();
        if let Ok(Ok(answer)) = timeout(ANSWER_TIMEOUT, hello).await
            && let Ok(time) = answer.get_datetime("localTime")
            && let Some(time) = DateTime::from_timestamp_millis(time.timestamp_millis())
        {
            probes.push(Probe::of(before, time, Utc::now()));
        }
    }
    probes.into_iter().min_by_key(|probe| probe.give_or_take)
}

fn finding(routers: &BTreeMap<String, Option<Probe>>) -> Finding {
    let probes = routers.values().flatten();
    let is_far_off = probes.clone().any(|probe| probe.ahead.abs() > FAR_OFF);
    let is_silent = routers.values().any(Option::is_none) || routers.is_empty();
    let told = routers.iter().map(|(router, probe)| match probe {
        Some(Probe {
            ahead,
            give_or_take,
        }) => {
            let (ahead, wrong) = (ahead.num_milliseconds(), give_or_take.num_milliseconds());
            format!("{router} {ahead:+} ms, give or take {wrong}")
        }
        None => format!("{router} does not answer"),
    });
    let told = match told.collect::<Vec<_>>() {
        none if none.is_empty() => "none answers".to_owned(),
        some => some.join("; "),
    };
    let text = format!(
        "their clocks, from this host's: {told}. Leases do not depend on them, the clock of the shard decides"
    );
    let value: Vec<Value> = routers.iter().map(as_value).collect();
    let grade = if is_far_off || is_silent {
        Grade::Mind
    } else {
        Grade::Good
    };
    Finding::new("routers", grade, text).with(value.into())
}

fn as_value((router, probe): (&String, &Option<Probe>)) -> Value {
    let millis = |time: TimeDelta| time.num_milliseconds();
    json!({
        "address": router,
        "ahead_ms": probe.map(|probe| millis(probe.ahead)),
        "give_or_take_ms": probe.map(|probe| millis(probe.give_or_take)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_compared_with_the_middle_of_the_round_trip() {
        let before: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
        let after = before + TimeDelta::milliseconds(40);
        let probe = Probe::of(before, before + TimeDelta::milliseconds(1_020), after);
        assert_eq!(probe.ahead, TimeDelta::milliseconds(1_000));
        assert_eq!(probe.give_or_take, TimeDelta::milliseconds(20));
    }

    #[test]
    fn a_router_far_off_or_silent_is_pointed_out() {
        let at = |millis| {
            Some(Probe {
                ahead: TimeDelta::milliseconds(millis),
                give_or_take: TimeDelta::milliseconds(2),
            })
        };
        let found = |probes: [Option<Probe>; 2]| {
            let names = ["a:1", "b:2"].map(str::to_owned);
            finding(&names.into_iter().zip(probes).collect())
        };
        let near = found([at(-3), at(5)]);
        assert!(near.grade == Grade::Good);
        assert!(
            near.text.contains("a:1 -3 ms, give or take 2; b:2 +5 ms"),
            "{}",
            near.text
        );
        let far = found([at(0), at(60_000)]);
        assert!(far.grade == Grade::Mind);
        assert_eq!(far.value[1]["ahead_ms"], 60_000);
        let silent = found([at(0), None]);
        assert!(silent.grade == Grade::Mind);
        assert!(
            silent.text.contains("b:2 does not answer"),
            "{}",
            silent.text
        );
        assert_eq!(silent.value[1]["ahead_ms"], Value::Null);
        assert!(finding(&BTreeMap::new()).grade == Grade::Mind);
    }
}
