//! Permits of a limiter that never reaches its limit.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use leasehold::{
    Key, Store,
    store::{PermitAnswer, PermitId, PermitRequest, Quota},
};

use super::sides;
use crate::{
    engines::Mongo,
    loops::{Loops, Work},
    raw,
    results::CaseResult,
    rounds::{Plan, compare},
};

/// Far more permits than any side takes.
const LIMIT: u32 = 1_000_000_000;
const WINDOW: Duration = Duration::from_secs(1);

pub const ABOUT: &str = "Permits of one limiter whose limit is never reached. Raw sends one command for each permit, \
    and has a counter in a window of the server's clock.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for tasks in [1, 8, 64] {
        let limiters = mongo.collection("raw").clone_with_type();
        // The document must exist first, because two concurrent first requests would both try to insert it.
        raw::permit(&limiters, "api", LIMIT.into(), WINDOW).await?;
        let single: Work = Arc::new(move |_, _| {
            let limiters = limiters.clone();
            Box::pin(async move { raw::permit(&limiters, "api", LIMIT.into(), WINDOW).await })
        });
        let limiter = sides::leases(mongo).await?.limiter("api", LIMIT, WINDOW);
        let ours: Work = Arc::new(move |_, _| {
            let limiter = limiter.clone();
            Box::pin(async move {
                limiter.permit().await?;
                Ok(())
            })
        });
        let store = sides::store(mongo, "leasehold-store").await?;
        let key = Key::new("api")?;
        let alone: Work = Arc::new(move |_, _| {
            let (store, key) = (store.clone(), key.clone());
            Box::pin(async move {
                let quota = Quota::fixed(LIMIT, WINDOW)?;
                let request = PermitRequest::new(key, PermitId::random(), quota, 1);
                let answer = store.permit(&request).await?;
                ensure!(
                    matches!(answer, PermitAnswer::Granted { .. }),
                    "the limiter is full"
                );
                Ok(())
            })
        });
        let sides = [
            Loops::new("raw", "permits/s", tasks, single).boxed(),
            Loops::new("leasehold-store", "permits/s", tasks, alone).boxed(),
            Loops::new("leasehold", "permits/s", tasks, ours).boxed(),
        ];
        result.add_at(tasks, "tasks", compare(plan, &sides).await?);
    }
    Ok(result)
}
