//! The faults in renewals.

use leasehold::{
    Error, Fence,
    rules::{self, Write},
    store::{Grant, RenewAnswer, RenewAnswers, RenewRequest},
};

use super::{BrokenStore, Fault};

impl BrokenStore {
    pub(super) async fn renew_wrongly(
        &self,
        requests: &[RenewRequest],
    ) -> Result<RenewAnswers, Error> {
        let mut answers = Vec::new();
        for request in requests {
            let record = self.record(&request.key);
            let mut asked = request.clone();
            if self.is(Fault::RenewsBlindly) {
                let holder = record.as_ref().and_then(|record| record.holders.first());
                asked.lease = holder.map_or(request.lease, |holder| holder.lease);
            }
            let now = self.now();
            if let (Fault::TrustsWhatIsKnown, Some(known)) = (self.fault, asked.known) {
                self.write(
                    &request.key,
                    rules::renew(record.as_ref(), &asked, now).write,
                );
                answers.push(Ok(RenewAnswer::Renewed(Grant {
                    is_awaited: false,
                    fence: known.fence,
                    acquired_at: known.acquired_at,
                    expires_at: now + request.ttl,
                    now,
                })));
                continue;
            }
            let mut decision = rules::renew(record.as_ref(), &asked, now);
            if let (Fault::RenewalsShorten, Write::Put(record)) = (self.fault, &mut decision.write)
            {
                for holder in &mut record.holders {
                    if holder.lease == asked.lease {
                        holder.expires_at = now + asked.ttl;
                    }
                }
                let latest = record.holders.iter().map(|holder| holder.expires_at).max();
                record.expires_at = latest.unwrap_or(now);
                decision.answer = rules::answer_renew(Some(record), asked.lease, now);
            }
            if let (Fault::RenewalsEndTheQueue, Write::Put(record)) =
                (self.fault, &mut decision.write)
            {
                record.waiters.clear();
            }
            if !self.is(Fault::RenewalIsForgotten) {
                self.write(&request.key, decision.write);
            }
            answers.push(Ok(match (self.fault, decision.answer) {
                (Fault::RenewsBlindly, _) => {
                    let now = self.now();
                    let fence = self.fences.lock().get(&request.lease).copied();
                    RenewAnswer::Renewed(Grant {
                        is_awaited: false,
                        fence: fence.unwrap_or(Fence::new(1)),
                        acquired_at: now,
                        expires_at: now + request.ttl,
                        now,
                    })
                }
                (_, answer) => {
                    if self.has_its_moment(Fault::RefusesSomeRenewals) {
                        RenewAnswer::TakenOver
                    } else {
                        answer
                    }
                }
            }));
        }
        Ok(answers)
    }
}
