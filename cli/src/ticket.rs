//! `acquire`, `renew` and `release`: a lease that several steps of a pipeline hold, one after the other.

use std::io;

use leasehold::{Error, Lease, Leases, Resumed, Ticket};

use super::{
    acquire::held,
    args::{AcquireTicket, OfTicket},
    exit::{Code, Failure},
    out,
    signals::Signals,
    text,
};

/// Acquires a lease, and prints its ticket. Nothing renews the lease until a later command does.
pub async fn acquire(args: AcquireTicket, leases: &Leases) -> Result<Code, Failure> {
    let mut signals = Signals::new()?;
    let acquire = args.lease.set_on(leases.acquire(&args.key, args.ttl));
    let acquired = tokio::select! {
        acquired = acquire.into_future() => acquired,
        // The close of the handle releases what is granted meanwhile.
        signal = signals.end() => return Ok(signal.into()),
    };
    let lease = match acquired {
        Ok(lease) => lease,
        Err(error @ (Error::WaitTimedOut { .. } | Error::TooManyHolders { .. })) => {
            out::say(&held(&error));
            return Ok(Code::Held);
        }
        Err(error) => return Err(error.into()),
    };
    let ticket = lease.into_ticket();
    let printed = serde_json::to_string(&ticket).map_err(io::Error::other);
    let printed = printed.and_then(|text| out::whole_line(&text));
    let Err(error) = printed else {
        return Ok(Code::Done);
    };
    // Without its ticket nobody could release the lease.
    if let Resumed::Live(lease) = leases.resume(&ticket).await? {
        lease.release().await?;
    }
    let text = format!("the ticket cannot be printed, so the lease is released: {error}");
    Err(Failure::Host(io::Error::other(text)))
}

/// Renews the lease of a ticket for another ttl.
pub async fn renew(args: OfTicket, leases: &Leases) -> Result<Code, Failure> {
    let lease = match resume(&args, leases).await? {
        Ok(lease) => lease,
        Err(code) => return Ok(code),
    };
    // The new ticket says the same as the old one, which the caller has.
    let (key, left) = (lease.key().clone(), lease.ttl());
    let _ = lease.into_ticket();
    let key = text::name(key.as_str());
    out::line(&format!("{key} is held for another {}", text::short(left)))
}

/// Releases the lease of a ticket.
pub async fn release(args: OfTicket, leases: &Leases) -> Result<Code, Failure> {
    let lease = match resume(&args, leases).await? {
        Ok(lease) => lease,
        Err(code) => return Ok(code),
    };
    lease.release().await?;
    Ok(Code::Done)
}

/// Continues the lease of a ticket. Returns an exit code instead if the lease is lost.
async fn resume(args: &OfTicket, leases: &Leases) -> Result<Result<Lease, Code>, Failure> {
    let ticket: Ticket = serde_json::from_str(&args.ticket).map_err(|_| {
        let text =
            "this is no ticket: give the line that `leasehold acquire` has printed, in quotes";
        Failure::Usage(text.to_owned())
    })?;
    match leases.resume(&ticket).await? {
        Resumed::Live(lease) => Ok(Ok(lease)),
        Resumed::Gone(reason) => {
            let key = text::name(ticket.key().as_str());
            out::say(&format!("the lease on {key} is lost: {reason}"));
            Ok(Err(Code::Lost))
        }
    }
}
