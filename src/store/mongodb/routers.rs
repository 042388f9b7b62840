//! Whether the routers in an address belong to one cluster.
//!
//! The driver spreads commands over all servers in the address that say they are routers. If they belong to two
//! clusters, each cluster has a document of its own for a key, and both grant it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use mongodb::{
    bson::{Bson, Document, doc},
    options::{SelectionCriteria, ServerAddress},
};
use tokio::time::timeout;

use super::{
    MongoStore,
    error::{classify, not_prepared},
    router_checks::RouterChecks,
};
use crate::model::Error;

/// How long a router may take to say to which cluster it belongs. One that is being replaced may never answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl MongoStore {
    /// Asks the routers to which cluster they belong, if that is due. After a failure the next operation asks again.
    pub(super) async fn check_routers_when_due(&self) -> Result<(), Error> {
        let now = Instant::now();
        let before = *self.routers.lock();
        if !before.is_due(now) {
            return Ok(());
        }
        // While this operation asks again, the others go on. But nothing goes on before the first answer.
        if before.last.is_some() {
            *self.routers.lock() = before.next(now);
        }
        let checked = self.ensure_one_cluster().await;
        *self.routers.lock() = match &checked {
            Ok(()) => before.next(now),
            Err(_) => RouterChecks::default(),
        };
        checked
    }

    /// Checks that all routers that the driver knows belong to one cluster. A router whose cluster cannot be told is
    /// left out: it cannot be reached, or the user may not read `config.version`.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if two routers belong to different clusters.
    pub(super) async fn ensure_one_cluster(&self) -> Result<(), Error> {
        let (routers, ping) = self.locks.ask_any(doc! { "ping": 1 }).await;
        ping.map_err(classify)?;
        if routers.len() < 2 {
            return Ok(());
        }
        let asked = routers.iter().map(|router| self.ask_cluster(router));
        let clusters = join_all(asked).await;
        let told = routers.iter().zip(clusters);
        let mut told = told.filter_map(|(router, cluster)| Some((router, cluster?)));
        let Some((one, cluster)) = told.next() else {
            return Ok(());
        };
        match told.find(|(_, of)| *of != cluster) {
            None => Ok(()),
            Some((other, _)) => Err(not_prepared(format!(
                "the routers {one} and {other} belong to different clusters, and each would grant one key: address \
                     those of one cluster"
            ))),
        }
    }

    /// The id of the cluster to which a router belongs, if it can be told.
    async fn ask_cluster(&self, router: &ServerAddress) -> Option<Bson> {
        let wanted = router.clone();
        let this = SelectionCriteria::Predicate(Arc::new(move |it| *it.address() == wanted));
        let config = self.locks.other_database("config");
        let version = config.collection::<Document>("version");
        let asked = async { version.find_one(doc! {}).selection_criteria(this).await };
        let answer = timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()??;
        answer.get("clusterId").cloned()
    }
}
