//! How many leases are kept alive. If they are more than the store can renew, an event says so long before the first
//! loss.

use super::{
    journal::{Journal, events},
    meter::Meter,
};
use crate::{
    TTL,
    many::{SlowStore, kept, live},
    setup,
};
use leasehold::Leases;
use tokio::time::{Duration, sleep};

#[tokio::test(start_paused = true)]
async fn late_renewals_are_told_before_a_lease_is_lost() {
    // The store can renew 2,000 leases in a ttl, and has to keep 4,000 alive.
    let leases = Leases::new(SlowStore::new(TTL / 2_000));
    let (journal, meter) = (Journal::new(), Meter::new());
    let kept = kept(&leases, 4_000).await;
    // The first renewals have been due for a twelfth of the ttl, and the task has looked at them
    // once more.
    sleep(TTL / 3 + TTL / 12 + Duration::from_secs(1)).await;
    let entries = journal.entries();
    let late = events(&entries, "renewals are late");
    assert_eq!(late.len(), 1, "{late:#?}");
    assert_eq!(late[0]["level"], "WARN");
    let fields = &late[0]["fields"];
    assert_eq!(fields["kept"], 4_000);
    assert!(fields["waiting"].as_u64() > Some(1_000), "{fields}");
    assert_eq!(fields["at_risk"], 0);
    assert_eq!(meter.moved()["leases_kept"].iter().sum::<f64>(), 4_000.0);
    assert_eq!(live(&kept), 4_000, "none is lost yet");

    let slowed = leases.try_acquire("one more", TTL).keep_alive();
    drop(slowed.await.unwrap());
    let entries = journal.entries();
    assert_eq!(events(&entries, "an acquire was slowed down").len(), 1);

    // The acquire took a third of the ttl, and now less than a third is left.
    let moved = meter.moved();
    assert!(moved["leases_at_risk"].iter().any(|more| *more > 0.0));
    assert_eq!(live(&kept), 4_000, "none is lost yet");
    drop(kept);
    sleep(TTL * 2).await;
    let moved = meter.moved();
    assert!(moved["leases_at_risk"].iter().sum::<f64>() < 0.0);
    assert!(moved["leases_kept"].iter().sum::<f64>() < 0.0);
}

/// While a set waits for its last key, the leases that it has are renewed. After that they are kept alive no longer.
#[tokio::test(start_paused = true)]
async fn a_set_that_has_waited_is_not_kept_alive() {
    let (_, leases) = setup();
    let last = leases.acquire("z", TTL * 10).await.unwrap();
    let meter = Meter::new();
    let waiting = tokio::spawn(leases.acquire_all(["a", "z"], TTL).into_future());
    sleep(TTL).await;
    last.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    let moved = meter.moved();
    assert_eq!(moved.get("leases_kept"), None, "as many as before");
    set.release().await.unwrap();
}
