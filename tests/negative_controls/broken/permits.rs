//! The faults in limiters.

use std::time::Duration;

use leasehold::{
    Error, Key, PermitsLeft,
    rules::{self, Write},
    store::{GiveBackRequest, PermitAnswer, PermitId, PermitRequest, Quota, WindowKind},
};

use super::{BrokenStore, Fault};

impl BrokenStore {
    pub(super) async fn permit_wrongly(
        &self,
        request: &PermitRequest,
    ) -> Result<PermitAnswer, Error> {
        let mut request = request.clone();
        if self.is(Fault::LimitersAreLocks) && self.record(&request.key).is_some() {
            return Err(Error::NotALimiter {
                key: request.key,
                problem: "it is a lock".to_owned(),
            });
        }
        let quota = request.quota;
        let mut series = series(&request.key, &quota);
        if self.is(Fault::AnotherWindowBlocks) {
            (series.1, series.2) = (Duration::ZERO, false);
        }
        let mut record = self.limiters.lock().get(&series).cloned();
        let now = self.now();
        match (self.fault, &mut record) {
            // This takes as long as the way to a server and back.
            (Fault::PermitsNotAtomic, _) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (Fault::PermitsInPart, _) => {
                let used = record.as_ref().map_or(0, |record| record.used as u32);
                let left = quota.limit().saturating_sub(used);
                request.permits = request.permits.min(left.max(1));
            }
            (Fault::SmoothIsFixed, _) => {
                request.quota = Quota::fixed(quota.limit(), quota.window())?;
            }
            // The window never ends as long as permits are requested.
            (Fault::PermitsWithoutWindow, Some(record)) => record.granted_at = now,
            (Fault::SmallBurstsGiveBack, Some(record)) => {
                let all = quota.window().as_nanos() as i64;
                let burst = i64::from(quota.most_at_once()) * all / i64::from(quota.limit());
                record.used = record.used.min(burst);
            }
            (Fault::RepeatedPermitsCount, Some(record)) => record.last = PermitId::random(),
            _ => {}
        }
        let mut decision = rules::permit(record.as_ref(), &request, now);
        if self.is(Fault::LeftBeforeTheGrant)
            && let PermitAnswer::Granted { permits, left, .. } = &mut decision.answer
        {
            left.remaining += *permits;
        }
        if let Write::Put(record) = decision.write {
            self.limiters.lock().insert(series, record);
        }
        Ok(decision.answer)
    }

    pub(super) async fn peek_wrongly(
        &self,
        key: &Key,
        quota: &Quota,
    ) -> Result<PermitsLeft, Error> {
        if self.is(Fault::PeeksTake) {
            let request = PermitRequest::new(key.clone(), PermitId::random(), *quota, 1);
            let (PermitAnswer::Granted { left, .. } | PermitAnswer::Full { left, .. }) =
                self.permit_wrongly(&request).await?;
            return Ok(left);
        }
        let record = self.limiters.lock().get(&series(key, quota)).cloned();
        let record = record.filter(|_| !self.is(Fault::PeeksSeeNothing));
        Ok(rules::peek(record.as_ref(), quota, self.now()))
    }

    pub(super) async fn give_back_wrongly(&self, request: &GiveBackRequest) -> Result<(), Error> {
        if self.is(Fault::GivesNothingBack) {
            return Ok(());
        }
        let mut limiters = self.limiters.lock();
        let Some(record) = limiters.get_mut(&series(&request.key, &request.quota)) else {
            return Ok(());
        };
        let mut request = request.clone();
        let newest = record.granted_at;
        match self.fault {
            Fault::GivesBackEarlierPermits => request.granted_at = request.granted_at.max(newest),
            Fault::GivesBackForgottenPermits => request.granted_at = request.granted_at.min(newest),
            _ => {}
        }
        if let Write::Put(changed) = rules::give_back(Some(record), &request, self.now()).write {
            *record = changed;
        }
        Ok(())
    }
}

/// What a limiter is counted by.
fn series(key: &Key, quota: &Quota) -> (Key, Duration, bool) {
    let is_smooth = quota.window_kind() != WindowKind::Fixed;
    (key.clone(), quota.window(), is_smooth)
}
