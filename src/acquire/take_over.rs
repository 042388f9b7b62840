//! Which leases an acquire takes over.

use std::sync::Arc;

use super::options::AcquireContext;
use crate::{
    model::{Error, Key, LeaseId},
    retry::{LONGEST_PAUSE, Tries},
    store::Store,
};

/// The live leases that an owner has of a key, without those of this process.
pub(super) async fn leases_of_owner(
    context: &AcquireContext,
    key: &Key,
    owner: &str,
) -> Result<Arc<[LeaseId]>, Error> {
    let keys = &context.keys;
    let mut tries = Tries::default();
    let state = loop {
        let of = key.clone();
        let read = async move |store: Arc<dyn Store>| store.inspect(&of).await;
        match keys.call("inspect", keys.call_timeout(), read).await {
            Ok(state) => break state,
            Err(error) => tries.pause(error, LONGEST_PAUSE).await?,
        }
    };
    let holders = state.iter().flat_map(|state| &state.holders);
    let own = holders.filter(|it| *it.owner == *owner && !keys.has_lease(key, it.lease));
    Ok(own.map(|it| it.lease).collect())
}
