//! A close that begins in the recorder of the metrics, when the recorder is told of a grant. At that moment the lease
//! is registered, but the caller does not have its guard yet.

use std::sync::Arc;

use futures::FutureExt;
use leasehold::{Error, Leases, LossReason, Resumed};
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use crate::{TTL, is_free, setup};

/// Closes the client when a gauge rises.
struct Closes(Leases);

impl GaugeFn for Closes {
    fn increment(&self, by: f64) {
        // A gauge that falls is reported as an increment by a negative number.
        if by > 0.0 {
            assert!(!self.0.is_closed(), "the gauge rises once");
            // The close goes on in the background.
            assert!(self.0.close().now_or_never().is_none(), "it has a release");
        }
    }

    fn decrement(&self, _: f64) {}

    fn set(&self, _: f64) {}
}

struct CloseOnGrant(Arc<Closes>);

impl Recorder for CloseOnGrant {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match key.name() {
            "leasehold_leases_held" => Gauge::from_arc(self.0.clone()),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The lease is either left to the caller, who has its ticket, or released by the close; never both.
#[tokio::test(start_paused = true)]
async fn a_resume_fails_only_if_the_close_leaves_the_lease_alone() {
    for keep_alive in [true, false] {
        let (store, leases) = setup();
        let ticket = leases.acquire("key", TTL).await.unwrap().into_ticket();
        let mut resume = leases.resume(&ticket);
        if keep_alive {
            resume = resume.keep_alive();
        }
        let closes = CloseOnGrant(Arc::new(Closes(leases.clone())));
        let recorder = metrics::set_default_local_recorder(&closes);
        let resumed = resume.await;
        drop(recorder);
        leases.close().await;
        match resumed {
            Ok(Resumed::Live(lease)) => {
                assert!(matches!(lease.lost().await, LossReason::Closed));
                assert!(is_free(&store).await);
            }
            Err(Error::Closed) => assert!(!is_free(&store).await, "the caller has the ticket"),
            other => panic!("{other:?}"),
        }
    }
}
