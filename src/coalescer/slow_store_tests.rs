//! How much is under way at a store that is too slow for what is asked of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    policy::{LEAST_BATCH, Limits},
    queue::{Class, SendQueue},
};
use crate::model::Key;

const STEP: Duration = Duration::from_millis(10);
const TIME: Duration = Duration::from_secs(600);
const MAX_CONCURRENT: usize = 16;
/// The connections of a driver. What is sent beyond them waits in the driver, and cannot be withdrawn there.
const CONNECTIONS: usize = 10;

/// Sends to a store that takes from `least` to three times as long for each request or batch, while this many requests
/// wait all the time. Returns the greatest number of requests and batches under way.
fn most_under_way(waiting: usize, least: Duration) -> usize {
    let mut random = fastrand::Rng::with_seed(7);
    let mut queue = SendQueue::new();
    let limits = Limits::of(MAX_CONCURRENT);
    let (start, mut keys, mut most) = (Instant::now(), 0, 0);
    // Those that wait in the driver, and those that the store carries out, each with its end.
    let (mut in_driver, mut in_store) = (Vec::new(), Vec::<(Instant, u64)>::new());
    let mut now = start;
    while now < start + TIME {
        let (ended, left) = in_store.into_iter().partition(|(end, _)| *end <= now);
        in_store = left;
        for (_, number) in ended {
            queue.answered(number, now);
            queue.ended(number);
        }
        let mut load = queue.update_load(now);
        while load.waiting < waiting {
            keys += 1;
            let key = Key::new(format!("key {keys}")).unwrap();
            queue.push(key, Class::Durable, now, ());
            load = queue.update_load(now);
        }
        let sends = queue.send_next(limits, LEAST_BATCH, now);
        in_driver.extend(sends.alone.into_iter().map(|(number, ())| number));
        in_driver.extend(sends.batch.map(|(number, _)| number));
        most = most.max(in_driver.len() + in_store.len());
        let free = CONNECTIONS
            .saturating_sub(in_store.len())
            .min(in_driver.len());
        for number in in_driver.drain(..free) {
            let took = least + least.mul_f64(2.0 * random.f64());
            in_store.push((now + took, number));
        }
        now += STEP;
    }
    most
}

/// Otherwise each request would wait for all those before it, and none would be answered in time any more.
#[test]
fn a_slow_store_does_not_get_more_and_more_requests() {
    for waiting in [1, LEAST_BATCH - 1, LEAST_BATCH * 20] {
        for seconds in [0.1, 1.0, 10.0, 100.0] {
            let most = most_under_way(waiting, Duration::from_secs_f64(seconds));
            assert!(most < 8 * MAX_CONCURRENT, "{waiting} {seconds}: {most}");
        }
    }
}
