//! Several limits for one caller: it gets permits of all of them or of none.
//!
//! The limits are asked one after the other, because no store changes several documents in one step. A caller that gets
//! no permit of one gives back those of the limits before it. The limit with the longest window comes first: a caller
//! waits for it without permits of the others, and permits of short windows, which end soon, are the newest.

use std::{mem, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::try_join_all;
use scopeguard::ScopeGuard;
use tokio::time::Instant;

use super::{
    driver::LimiterQueue,
    permit::{Part, Permit, scarcer},
};
use crate::model::{Error, PermitsLeft, Quota, WindowKind};

/// At least one limit.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    first: Arc<LimiterQueue>,
    others: Vec<Arc<LimiterQueue>>,
}

impl Limits {
    pub(super) fn one(first: Arc<LimiterQueue>) -> Self {
        let others = Vec::new();
        Self { first, others }
    }

    /// These limits and those.
    pub(super) fn and(mut self, those: Self) -> Self {
        self.insert(those.first);
        those
            .others
            .into_iter()
            .for_each(|limit| self.insert(limit));
        self
    }

    fn insert(&mut self, mut limit: Arc<LimiterQueue>) {
        if limit.quota.window() > self.first.quota.window() {
            mem::swap(&mut limit, &mut self.first);
        }
        let is_longer = |it: &Arc<LimiterQueue>| it.quota.window() >= limit.quota.window();
        let place = self.others.partition_point(is_longer);
        self.others.insert(place, limit);
    }

    /// The same limits with other quotas.
    pub(super) fn with(
        self,
        quota: impl Fn(&Quota) -> Result<Quota, Error>,
    ) -> Result<Self, Error> {
        let with = |of: &Arc<LimiterQueue>| {
            let quota = quota(&of.quota)?;
            Ok(LimiterQueue::of(&of.context, of.key.clone(), quota))
        };
        let first = with(&self.first)?;
        let others = self.others.iter().map(with).collect::<Result<_, Error>>()?;
        Ok(Self { first, others })
    }

    /// What is left of the limit with the fewest permits left.
    pub(super) async fn peek(&self) -> Result<PermitsLeft, Error> {
        let first = self.first.peek().await?;
        let others = try_join_all(self.others.iter().map(|limit| limit.peek())).await?;
        Ok(others.into_iter().fold(first, scarcer))
    }

    /// Takes permits of each limit.
    pub(super) async fn take(self, permits: u32, wait: Option<Duration>) -> Result<Permit, Error> {
        self.first.check(permits)?;
        self.others
            .iter()
            .try_for_each(|limit| limit.check(permits))?;
        let since = Instant::now();
        let ask = async |limit: Arc<LimiterQueue>| {
            let wait = wait.map(|wait| wait.saturating_sub(since.elapsed()));
            let granted = limit.take(permits, wait).await?;
            Ok(Part { granted, limit })
        };
        let first = Permit::new(ask(self.first).await?);
        // If the caller leaves, or after an error, what was taken is given back in the background.
        let mut taken = scopeguard::guard(first, give_back_later);
        let taking = async {
            for limit in self.others {
                let part = ask(limit).await?;
                taken.others.push(part);
            }
            // A window may have ended while the caller waited for permits of another limit. Its permits are not given
            // back, because they count no more. This is done once, because a window may be shorter than a request takes.
            let newest = taken.granted_at();
            for part in taken.parts_mut() {
                if is_of_earlier_window(part, newest) {
                    *part = ask(part.limit.clone()).await?;
                }
            }
            Ok(())
        };
        match taking.await {
            Ok(()) => Ok(ScopeGuard::into_inner(taken)),
            Err(error @ Error::LimitReached { .. }) => {
                // The store has just answered, so this takes about as long as one more request. Its errors were reported.
                let _ = ScopeGuard::into_inner(taken).give_back().await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}

/// Gives permits back without a caller that waits for it. A close of the client waits.
fn give_back_later(permit: Permit) {
    let lifecycle = permit.first.limit.context.lifecycle.clone();
    let at_work = lifecycle.at_work.token();
    lifecycle.spawn(async move {
        // Its errors were reported.
        let _ = permit.give_back().await;
        drop(at_work);
    });
}

/// Whether these permits were granted in a window that had ended at this time.
fn is_of_earlier_window(part: &Part, time: DateTime<Utc>) -> bool {
    let quota = &part.limit.quota;
    let window = |at: DateTime<Utc>| at.timestamp_millis().div_euclid(quota.window_millis());
    quota.window_kind() == WindowKind::Fixed && window(part.granted.granted_at) < window(time)
}
