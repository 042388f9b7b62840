//! Code that the suites on real engines share.
pub mod cancel;
pub mod carried;
pub mod clock_ahead;
pub mod computing;
pub mod crowd;
pub mod delays;
pub mod disguise;
pub mod engine;
pub mod every;
pub mod evicted;
pub mod faketime;
pub mod fuzz;
pub mod hostile;
pub mod late_conversions;
pub mod layer;
pub mod liar;
pub mod many;
pub mod model;
pub mod permits;
pub mod prefix;
pub mod preload;
pub mod processes;
pub mod protocol;
pub mod proxy;
pub mod python_client;
pub mod renewal_log;
pub mod sentence;
pub mod soak;
pub mod stalls;
pub mod text;

use std::{env, path::Path, time::Duration};

use leasehold::{Leases, Store};

/// Longer than a working engine takes for an answer, however slow the machine is.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A handle that gives up no call because of a slow machine.
pub fn patient(store: impl Store) -> Leases {
    Leases::builder(store).call_timeout(PATIENCE).build()
}

/// The folder of the whole project.
pub fn project() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Whether this is a long run, which may take hours (`scripts/nightly`). Tests do more in it.
pub fn long() -> bool {
    env::var_os("LEASEHOLD_LONG").is_some_and(|long| long == "1")
}
