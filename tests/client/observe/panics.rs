//! What a panic in the subscriber of the application does to the task that renews leases.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use leasehold::LossReason;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
};

use super::{
    super::{TTL, setup},
    journal,
};

/// A subscriber that panics where renewals are sent or fail, as long as it is told to.
struct Panics(Arc<AtomicBool>);

impl<S: Subscriber> Layer<S> for Panics {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let renews = event.metadata().fields().field("lag").is_some();
        assert!(
            !(renews && self.0.load(Relaxed)),
            "the subscriber is broken"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_the_reason_of_a_loss_and_the_next_acquire_has_leases_renewed_again() {
    journal::ask_each_thread();
    let panics = Arc::new(AtomicBool::new(true));
    let subscriber = tracing_subscriber::registry().with(Panics(panics.clone()));
    let _default = tracing::subscriber::set_default(subscriber);
    let (_, leases) = setup();
    let keep = |key| leases.acquire(key, TTL).keep_alive().into_future();
    // The event of one lease panics too, and the other hears of it all the same.
    let (lease, other) = (keep("key").await.unwrap(), keep("other").await.unwrap());
    for lease in [lease, other] {
        let LossReason::Unreachable(why) = lease.lost().await else {
            panic!("another reason");
        };
        assert_eq!(why.source().unwrap().to_string(), "it panicked");
    }
    panics.store(false, Relaxed);
    let next = leases.acquire("another", TTL).keep_alive().await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    assert!(next.is_live());
}
