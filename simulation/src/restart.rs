//! The runtime of all clients has ended, with all their tasks and requests under way, and the process goes on with
//! another runtime.

use std::{rc::Rc, time::Duration};

use leasehold::{Error, Lease, Leases};
use tokio::time::{Instant, advance, sleep_until, timeout};

use crate::{
    connection::Connection,
    guard::{Guard, Terms},
    judge::Judge,
    ledger::Ledger,
    server::Server,
    task::{CALL, LONGEST_TTL},
    world::is_clean,
};

/// What the end of the runtime leaves of the clients.
pub struct Left {
    /// The handles of the clients.
    pub handles: Vec<Leases>,
    /// What their tasks had.
    pub guards: Vec<Rc<Guard>>,
    /// When that was, counted from the begin of the run.
    pub at: Duration,
}

impl Left {
    /// What the process does in its next runtime. Nothing meets a fault any more.
    pub async fn goes_on(self, ledger: &Ledger) {
        let began = Instant::now();
        // No earlier time than that of the first runtime.
        advance(self.at).await;
        let server = &ledger.server;
        server.state().restart(began);
        ledger.check();
        for handle in self.handles {
            is_refused(&handle, server).await;
        }
        others_go_on(ledger).await;
        let mut rng = server.course.rng(0, 0, 0);
        for guard in self.guards {
            // The task that had it is gone.
            if let Some(lease) = guard.into_lease() {
                server.state().count("guard left");
                ends(lease, rng.u8(0..3), server).await;
            }
        }
        // By how much the clocks of the two runtimes differ, no run tells.
        sleep_until(began + self.at + LONGEST_TTL * 2).await;
        is_clean(ledger, false).await;
        server.state().is_over = true;
    }
}

/// A handle whose runtime has ended acquires nothing, and says so. One that was not used there is used from now on.
async fn is_refused(handle: &Leases, server: &Server) {
    let attempt = handle.try_acquire("one", Duration::from_secs(1));
    match timeout(CALL, attempt).await {
        Ok(Err(Error::RuntimeEnded | Error::Closed) | Ok(_)) => {}
        other => {
            let text = format!("after the runtime: {other:?}");
            server.state().accuse(Judge::Bound, text);
        }
    }
    if timeout(CALL, handle.close()).await.is_err() {
        server.state().accuse(Judge::Bound, "a late close");
    }
}

/// A guard that is left is released, or told of its end, or dropped.
async fn ends(lease: Lease, how: u8, server: &Server) {
    if how == 1
        && timeout(lease.remaining() + CALL, lease.lost())
            .await
            .is_err()
    {
        server.state().accuse(Judge::Told, "a late loss");
    } else if how == 0 && timeout(CALL, lease.release()).await.is_err() {
        server.state().accuse(Judge::Bound, "a late release");
    }
}

/// Another process is granted each key when what the documents keep is over, at the latest.
async fn others_go_on(ledger: &Ledger) {
    let server = &ledger.server;
    let connection = Connection::new(server.clone(), server.course.clients);
    let leases = Leases::builder(connection).owner("another").build();
    for key in &server.course.keys {
        let limit = server.state().lasts(key, None) + CALL;
        let asked = Instant::now();
        let acquire = leases.acquire(key, Duration::from_secs(1)).wait_for(limit);
        match acquire.await {
            Ok(lease) => {
                let guard = Guard::new(server.course.clients, lease, Terms::default(), asked);
                ledger.granted(&guard, None);
            }
            Err(error) => server
                .state()
                .accuse(Judge::Kept, format!("{key}: {error}")),
        }
    }
    leases.close().await;
}
