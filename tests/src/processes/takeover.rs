//! A process takes over from one that is killed, or paused for longer than its ttl.

use std::{sync::Arc, time::Duration};

use leasehold::Store;
use tokio::time::{Instant, sleep, timeout};

use super::{LONG, Place, Process, patient, timed};

/// The ttls of a lease with keep-alive, one for each attempt. The next one is for a machine that stands still for so
/// long that the lease expires before another process waits. With the last one that is a failure.
const TTLS: [Duration; 3] = [
    Duration::from_secs(4),
    Duration::from_secs(20),
    Duration::from_secs(100),
];
/// The ttls of a lease that has to be live until its holder is paused.
const PAUSED_TTLS: [Duration; 3] = [
    Duration::from_secs(15),
    Duration::from_secs(40),
    Duration::from_secs(100),
];
/// Longer than the clocks of two processes differ.
const MOMENT: Duration = Duration::from_millis(500);
/// What a process tells that has lost its lease, and has not heard of another holder.
const EXPIRED: [&str; 2] = ["expired", "unreachable"];

/// One process holds the key, exclusively or as a reader, and another waits. The holder gets SIGKILL. The other takes
/// over after the ttl, by the server's clock, with a higher fence.
pub async fn takeover_from_a_killed_process(place: &Place) {
    for task in ["hold", "read"] {
        takeover_from(place, task).await;
    }
}

async fn takeover_from(place: &Place, task: &str) {
    let (mut first, mut second) = holder_and_waiter(place, [task, "wait"], &TTLS).await;
    first.process.kill().await;
    let (what, second_fence, taken_over_at) = second.process.next().await;
    assert_eq!(what, "held");
    first.is_followed_by(second_fence, taken_over_at);
    assert!(
        taken_over_at >= second.time,
        "taken over {} ms before its end",
        second.time - taken_over_at
    );
    assert!(second.process.child.wait().await.unwrap().success());
}

/// A process, and the first thing that it told.
struct Begun {
    process: Process,
    fence: i64,
    time: i64,
    /// The ttl of the lease that it asks for.
    ttl: Duration,
}

impl Begun {
    /// Checks that the next lease has a higher fence. By the server's clock it was granted after the end of this
    /// process's lease, even if that was not renewed.
    fn is_followed_by(&self, fence: i64, acquired_at: i64) {
        assert!(fence > self.fence, "{fence} after {}", self.fence);
        let lived = acquired_at - self.time;
        let ttl = self.ttl.as_millis() as i64;
        assert!(lived >= ttl, "taken over after {lived} ms of {ttl}");
    }
}

/// Starts a process that holds the key, and one that finds it held and waits for it. If the key is free instead, that
/// is excused if the server's clock, the fence and the holder itself all say that the lease had expired. With the last
/// ttl it is not excused.
async fn holder_and_waiter(
    place: &Place,
    [holds, waits]: [&str; 2],
    ttls: &[Duration],
) -> (Begun, Begun) {
    for &ttl in ttls {
        let mut process = Process::start(place, &timed(holds, ttl));
        let (what, fence, time) = process.next().await;
        assert_eq!(what, "held");
        let mut first = Begun {
            process,
            fence,
            time,
            ttl,
        };
        let mut process = Process::start(place, waits);
        let (what, fence, time) = process.next().await;
        if what == "refused" {
            // The document has the last fence of those that the lease has taken.
            assert!(fence >= first.fence, "{fence} under {}", first.fence);
            let second = Begun {
                process,
                fence,
                time,
                ttl: LONG,
            };
            return (first, second);
        }
        assert_eq!(what, "free");
        first.is_followed_by(fence, time);
        let (lost, writes, _) = first.process.next().await;
        assert!(EXPIRED.contains(&&*lost), "the key was free: {lost}");
        assert_eq!(writes, 0, "it goes on writing beside the other");
        println!("the kept lease of {ttl:?} had expired before anybody waited");
        first.process.kill().await;
        assert!(process.child.wait().await.unwrap().success());
    }
    panic!("a kept lease had expired before anybody waited, again and again");
}

/// The holder stands still for longer than its ttl, and another process takes over. When the first process goes on, it
/// writes nothing more, and learns that it has lost its lease before it could ask the server. Its release leaves the
/// lease of the other process unchanged.
pub async fn pause_past_the_ttl(place: &Place, store: Arc<dyn Store>) {
    for attempt in 0..PAUSED_TTLS.len() {
        if is_paused_past_the_ttl(place, store.clone(), &PAUSED_TTLS[attempt..]).await {
            return;
        }
        // The other process was killed while it had the key.
        patient(store.clone()).evict("key").await.unwrap();
    }
    panic!("a kept lease had expired before its holder was paused, again and again");
}

/// Whether the lease was live until its holder was paused. On a slow machine it may have expired and gone back before.
async fn is_paused_past_the_ttl(place: &Place, store: Arc<dyn Store>, ttls: &[Duration]) -> bool {
    let tasks = ["write", "wait and hold"];
    let (mut first, mut second) = holder_and_waiter(place, tasks, ttls).await;
    first.process.stop();
    let stopped = Instant::now();
    // It tells nothing more, so this is what it told before.
    if let Ok((lost, writes, _)) = timeout(MOMENT, first.process.next()).await {
        assert!(EXPIRED.contains(&&*lost), "{lost}");
        assert_eq!(writes, 0, "it goes on writing after its lease");
        println!(
            "a lease of {:?} had expired before its holder was paused",
            first.ttl
        );
        first.process.kill().await;
        // It has the key then, and no request that is under way.
        assert_eq!(second.process.next().await.0, "held");
        second.process.kill().await;
        return false;
    }
    let (what, second_fence, taken_over_at) = second.process.next().await;
    assert_eq!(what, "held");
    first.is_followed_by(second_fence, taken_over_at);
    // The lease was renewed some time before the stop, so the other process did not have to wait for all of the ttl.
    sleep((first.ttl + MOMENT).saturating_sub(stopped.elapsed())).await;
    first.process.resume();

    // If it had asked the server, it would tell that its lease was taken over.
    let (lost, writes, _) = first.process.next().await;
    assert!(EXPIRED.contains(&&*lost), "{lost}");
    assert_eq!(writes, 0, "it goes on writing beside the other");
    assert_eq!(first.process.next().await.0, "refused");
    let state = patient(store).inspect("key").await.unwrap().unwrap();
    let fences: Vec<_> = state.holders.iter().map(|it| it.fence.get()).collect();
    assert!(
        matches!(fences[..], [fence] if fence >= second_fence),
        "{fences:?} after {second_fence}"
    );
    true
}
