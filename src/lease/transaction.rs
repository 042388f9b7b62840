//! `Lease::enforce`: a lease as part of a MongoDB transaction of the application.

use mongodb::ClientSession;
use tokio::time::Instant;

use super::guard::Lease;
use crate::{
    messages::RenewAnswer,
    model::{Error, LossReason},
    rules,
    store::mongodb::{MongoStore, transaction},
    telemetry::StayEndReason,
};

impl Lease {
    /// Makes the lease part of a MongoDB transaction of the application: the transaction is committed under the live
    /// lease, or not at all. Needs the features `mongodb` and `fencing`.
    ///
    /// This call checks the lease on the server's clock and writes the lock's document within the transaction. From
    /// then on a takeover, an eviction, a renewal or a release waits for the end of the transaction. If a takeover, an
    /// eviction or a release came earlier, this call fails. If all writers of the data use such transactions, the data
    /// needs no fences, and inserts and deletes are protected too.
    ///
    /// Call this **first in the transaction**: a transaction reads the data as of its first statement, so a
    /// renewal between that statement and this call is a write conflict. On a sharded cluster a transaction that
    /// does not begin with this call is not safe: unless its read concern is `snapshot`, data that it read from
    /// another shard before this call may be older than the lease. Sharded clusters were not tested.
    ///
    /// **Between this call and the end of the transaction, never wait in the same task** for
    /// [`renew`](Lease::renew), [`upgrade`](Lease::upgrade), [`downgrade`](Lease::downgrade) or
    /// [`release`](Lease::release) of this lease, nor for [`Leases::close`](crate::Leases::close): they wait
    /// for the end of the transaction, which then waits for them.
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
    /// - The deployment must support transactions and update pipelines: a replica set, or a sharded cluster from
    ///   MongoDB 8.3 on. On any other deployment this call returns [`Error::NotEnforceable`], or [`Error::NotPrepared`]
    ///   where the store works [without pipelines](crate::MongoStore::without_pipelines).
    /// - **The transaction must be much shorter than the ttl.** A renewal of this lease waits for the end of
    ///   the transaction, and the lease is lost at its deadline all the same. Renewals are sent in batches, so
    ///   the renewals of other leases in the same batch wait too, until they are sent again in smaller batches,
    ///   after a sixth of the ttl.
    /// - Set the transaction's write concern to a majority and the journal (`w: "majority"`, `j: true`). A
    ///   transaction has only one write concern, and the application sets it. The default is a majority
    ///   on most deployments since MongoDB 5.0, but not with arbiters, nor with a `w=` in the connection
    ///   string; and the default includes the journal unless the replica set was set up with
    ///   `writeConcernMajorityJournalDefault: false`.
    /// - A holder that is paused in its transaction keeps the waiters for the key waiting until the server aborts
    ///   the transaction: after a minute, by default.
    /// - This call sets the field `touched` of the lock's document. Nothing reads the field.
    /// - Transactions under shared leases or permits of one key conflict with each other, because all of
    ///   them write the document of the key. Run a transaction again after such a conflict.
    ///
    /// # Errors
    ///
    /// Return from the transaction on any error. After an error the server has aborted the transaction, so a caller
    /// that goes on cannot commit it. If the server could not be reached, only the driver has aborted it, and **later
    /// writes of the session take effect at once, outside of any transaction**.
    ///
    /// - [`Error::Lost`] if the lease is lost.
    /// - [`Error::TransactionAborted`] after a write conflict, for example: run the whole transaction again. With `?`
    ///   this error becomes the driver's own error, for which `and_run` and `and_run2` run the transaction again. Any
    ///   other error is wrapped in an error of the driver, and `get_custom::<leasehold::Error>()` returns it.
    /// - [`Error::NotEnforceable`] if the lease is not in a [`MongoStore`], if the session is in no transaction, if the
    ///   transaction began before the lease was granted, or if the deployment has no transactions. Later writes of a
    ///   session without a transaction take effect at once.
    /// - [`Error::Store`] with the driver's message, if the session cannot have a transaction for another reason: it is
    ///   a snapshot session, or has unacknowledged writes.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe, because the driver's sessions are not: if the future is dropped, drop the session too.
    /// The server then aborts the transaction.
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
    lease
        .keys
        .stop_serving(&lease.state, StayEndReason::DocumentNeeded);
    let state = lease.state.stored();
    let store = lease.keys.store.as_any();
    let Some(store) = store.and_then(|store| store.downcast_ref::<MongoStore>()) else {
        return Err(transaction::not_enforceable(
            state.key(),
            "it is not kept by a MongoStore, so no transaction of MongoDB covers it",
        ));
    };
    let found = store.touch(state.key(), session).await?;
    // A lease that was granted from memory may be lost before the lease in the store is.
    lease.ensure_live(Instant::now())?;
    // The transaction has just written the document. This is its newest version, because the write of an older version
    // would have been a write conflict.
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
