//! The store in a file, on real files.

mod between_processes;
mod boots;
mod copies;
mod crashes;
mod delays;
mod documents;
mod errors;
#[cfg(target_os = "linux")]
mod lost_writes;
mod model;
mod names;
mod other_users;
mod together;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::{Duration, SystemTime},
};

use leasehold::{SqliteStore, Store, store::LeaseId};
use leasehold_conformance::Clients;

/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A path that no other test uses. Files of earlier runs are removed. Those of this run stay, for people who want to
/// look at them.
fn path() -> PathBuf {
    static TIDY: Once = Once::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sqlite");
    fs::create_dir_all(&folder).unwrap();
    TIDY.call_once(|| {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let changed = entry.metadata().and_then(|data| data.modified()).ok();
            let age = changed.and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age > Duration::from_secs(3_600)) {
                // Another process may have removed it.
                let _ = fs::remove_file(entry.path());
            }
        }
    });
    folder.join(format!("{}.db", LeaseId::random()))
}

async fn store_at(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path).await.unwrap())
}

/// Two stores with a connection each.
async fn connect() -> Clients {
    let path = path();
    Clients::new(store_at(&path).await, store_at(&path).await)
}

leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);

/// Two handles on one connection.
mod on_one_connection {
    use super::*;

    async fn connect() -> Clients {
        let store = SqliteStore::open(path()).await.unwrap();
        Clients::new(store.clone(), store)
    }

    leasehold_conformance::conformance_suite!(connect);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_key_has_a_bounded_number_of_holders() {
        let clients = connect().await;
        leasehold_conformance::a_key_has_a_bounded_number_of_holders(&clients)
            .await
            .unwrap();
    }
}
