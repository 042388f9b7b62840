//! The runtime of all clients has ended, with all their tasks and requests under way, and the process goes on with
//! another runtime.

use std::{rc::Rc, sync::Arc, time::Duration};

use leasehold::{Attempt, Error, Lease, Leases};
use tokio::time::{Instant, advance, sleep_until, timeout};

use crate::{
    connection::Connection,
    course::Course,
    guard::{Guard, Held},
    judge::Judge,
    ledger::Ledger,
    server::Server,
    task::{CALL, LONGEST_TTL, keys},
    trace::Who,
    world::is_clean,
};

/// What the end of the runtime leaves of the clients.
pub struct Left {
    handles: Vec<Leases>,
    guards: Vec<Rc<Guard>>,
    /// When that was, counted from the begin of the run.
    at: Duration,
}

impl Left {
    /// What is left if the runtime ends now.
    pub fn of(handles: Vec<Leases>, server: &Server, ledger: &Ledger) -> Self {
        ledger.count("runtime ended");
        server.say(Who::World, || "the runtime ends".to_owned());
        Self {
            handles,
            guards: ledger.guards(),
            at: server.state().began.elapsed(),
        }
    }

    /// What the process does in its next runtime. Nothing meets a fault any more.
    pub async fn goes_on(self, course: &Course, server: &Arc<Server>, ledger: &Ledger) {
        let began = Instant::now();
        // No earlier time than that of the first runtime.
        advance(self.at).await;
        server.trace.begin(began);
        server.state().restart(began);
        ledger.check();
        for handle in self.handles {
            is_refused(&handle, server).await;
        }
        others_go_on(course, server, ledger).await;
        let mut rng = course.rng(0, 0, 0);
        for guard in self.guards {
            // The task that had it is gone.
            if let Some(lease) = guard.into_lease() {
                ledger.count("guard left");
                ends(lease, rng.u8(0..3), server).await;
            }
        }
        // By how much the clocks of the two runtimes differ, no run tells.
        sleep_until(began + self.at + LONGEST_TTL * 2).await;
        is_clean(server, ledger, false).await;
    }
}

/// A handle whose runtime has ended acquires nothing, and says so. One that was not used there is used from now on.
async fn is_refused(handle: &Leases, server: &Server) {
    let attempt = handle.try_acquire("one", Duration::from_secs(1));
    match timeout(CALL, attempt).await {
        Ok(Err(Error::RuntimeEnded | Error::Closed) | Ok(Attempt::Held(_))) => {}
        Ok(Ok(Attempt::Acquired(lease))) => drop(lease),
        other => server.accuse(Judge::Bound, || format!("after the runtime: {other:?}")),
    }
    if timeout(CALL, handle.close()).await.is_err() {
        server.accuse(Judge::Bound, || "a close after the runtime".to_owned());
    }
}

/// A guard that is left is released, or told of its end, or dropped.
async fn ends(lease: Lease, how: u8, server: &Server) {
    if how == 0 {
        if timeout(CALL, lease.release()).await.is_err() {
            server.accuse(Judge::Bound, || "a release after the runtime".to_owned());
        }
    } else if how == 1 {
        let bound = lease.remaining() + CALL;
        if timeout(bound, lease.lost()).await.is_err() {
            server.accuse(Judge::Told, || format!("{lease:?} after the runtime"));
        }
    }
}

/// Another process is granted each key when what the documents keep is over, at the latest.
async fn others_go_on(course: &Course, server: &Arc<Server>, ledger: &Ledger) {
    let connection = Connection::new(server.clone(), course.clients, course);
    let leases = Leases::builder(connection).owner("another").build();
    for key in keys(course.key_names()) {
        let limit = server.state().lasts(&key) + CALL;
        let asked = Instant::now();
        let acquire = leases.acquire(&key, Duration::from_secs(1)).wait_for(limit);
        match acquire.await {
            Ok(lease) => {
                let held = Held::Lease(lease);
                let guard = Guard::new(course.clients, held, false, Duration::ZERO, asked);
                ledger.granted(&guard, None);
            }
            Err(error) => server.accuse(Judge::Kept, || format!("{key}: {error}")),
        }
    }
    leases.close().await;
}
