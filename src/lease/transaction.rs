//! A lease as part of the user's own transaction of MongoDB.

use chrono::{DateTime, Utc};
use mongodb::ClientSession;
use tokio::time::Instant;

use super::guard::Lease;
use crate::{
    lease_state::LeaseState,
    messages::RenewAnswer,
    model::{Error, LockRecord, LossReason},
    rules,
    store::mongodb::{MongoStore, transaction},
};

impl Lease {
    /// Makes the lease part of a transaction of the application: what the transaction writes is committed
    /// under the lease, or not at all. Feature `mongodb`.
    ///
    /// The lease is looked at on the server's clock, and its document in the lock's collection is written
    /// within the transaction. So a takeover, an eviction, a renewal or a release comes before, and then
    /// this is an error, or it waits for the end of the transaction. As long as all who write do so in such
    /// transactions, the data needs no fences, and inserts and deletes are covered too.
    ///
    /// Call it **first in the transaction**: a transaction sees the data of its first statement on, and a
    /// renewal after that, before this call, is a write conflict. On a sharded cluster it is more than
    /// that, a condition: unless the read concern of the transaction is `snapshot`, what was read from
    /// another shard before this call may be older than the lease. No sharded cluster was tried.
    ///
    /// **Between this call and the end of the transaction, never wait in the same task** for
    /// [`renew`](Lease::renew), [`upgrade`](Lease::upgrade), [`downgrade`](Lease::downgrade) or
    /// [`release`](Lease::release) of this lease, nor for [`Leases::close`](crate::Leases::close): they wait
    /// for the end of the transaction, and it for them.
    ///
    /// ```no_run
    /// # use leasehold::Lease;
    /// # use mongodb::{Client, Collection, bson::{Document, doc}};
    /// # async fn example(client: Client, orders: Collection<Document>, lease: Lease) -> mongodb::error::Result<()> {
    /// let mut session = client.start_session().await?;
    /// session
    ///     .start_transaction()
    ///     .and_run2(async |session| {
    ///         lease.enforce(session).await?;
    ///         orders.insert_one(doc! { "_id": 7 }).session(session).await?;
    ///         Ok(())
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// - The lock's collection and the data must be in one cluster, and the session must be of the client
    ///   whose collection the [`MongoStore`] was made with.
    /// - It needs transactions, so a replica set or a sharded cluster.
    /// - **The transaction must be much shorter than the ttl.** A renewal of this lock waits for its end,
    ///   and the deadline does not wait for the renewal. Renewals go together, so those of other leases
    ///   that share the command wait too, until they are sent again in smaller ones, after a sixth of the
    ///   ttl.
    /// - Set the transaction's write concern to a majority and the journal (`w: "majority"`, `j: true`): it
    ///   is one for the whole transaction, so that only the application can say it. The default is a majority
    ///   on most deployments since MongoDB 5.0, but not with arbiters, nor with a `w=` in the connection
    ///   string; and it includes the journal unless the replica set was set up with
    ///   `writeConcernMajorityJournalDefault: false`.
    /// - A holder that is paused in its transaction keeps others waiting until the server gives the
    ///   transaction up: after a minute, by default.
    /// - It leaves a mark in the lock's document, in a field `touched` that nothing reads and that every
    ///   version carries along or drops.
    /// - Transactions under shared leases or permits of one key conflict with each other, because all of
    ///   them write its document, and have to be run again.
    ///
    /// # Errors
    ///
    /// After any of them the server has given up the transaction, so that not even a caller who goes on
    /// regardless can commit it. If the server could not be told, the driver has, and **what the session
    /// writes after that is written at once, outside of any transaction**. So return on any error.
    ///
    /// - [`Error::Lost`] if the lease is over.
    /// - [`Error::TransactionAborted`] for a write conflict, for one: run the whole transaction again.
    ///   With `?` it becomes the driver's own error, by which `and_run` does that. Any other comes back out
    ///   of the driver's error by `get_custom::<leasehold::Error>()`.
    /// - [`Error::NotEnforceable`] if the lease is of another kind of store, or the session is in no
    ///   transaction, or began it before the lease was granted, or the deployment has none. In a session
    ///   without a transaction there is nothing to give up: what follows is written at once.
    /// - [`Error::Store`] with the driver's words, if the session can have no transaction for another
    ///   reason: one of snapshots, or one whose writes would not be acknowledged.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe, as nothing in a session of the driver is: after a drop the session is of no use.
    /// Drop it too, and the server gives up the transaction.
    pub async fn enforce(&self, session: &mut ClientSession) -> Result<(), Error> {
        transaction::ensure_in_transaction(session, self.key()).await?;
        let outcome = enforce(self, session).await;
        if outcome.is_err() {
            transaction::give_up(session).await;
        }
        outcome
    }
}

async fn enforce(lease: &Lease, session: &mut ClientSession) -> Result<(), Error> {
    let state = lease.state();
    let store = lease.store().as_any();
    let Some(store) = store.and_then(|store| store.downcast_ref::<MongoStore>()) else {
        return Err(transaction::not_enforceable(
            state.key(),
            "it is not kept by a MongoStore, so no transaction of MongoDB covers it",
        ));
    };
    let found = store.touch(state.key(), session).await?;
    judged(&state, found)
}

/// What the document says of the lease. A write conflict would have told if it were not the newest.
fn judged(state: &LeaseState, found: Option<(LockRecord, DateTime<Utc>)>) -> Result<(), Error> {
    if let Some(reason) = state.loss(Instant::now()) {
        return Err(state.lost_error(reason));
    }
    let Some((record, now)) = found else {
        return Err(transaction::not_enforceable(
            state.key(),
            "the transaction does not see the lock: it began before the lease was granted, or the lock \
             was removed",
        ));
    };
    let reason = match rules::answer_renew(Some(&record), state.id(), now) {
        RenewAnswer::Renewed(grant) if state.is_own(grant.fence) => return Ok(()),
        RenewAnswer::Renewed(_) | RenewAnswer::TakenOver => LossReason::TakenOver,
        RenewAnswer::Expired => LossReason::Expired,
    };
    Err(state.lost_error(state.lose(reason)))
}
