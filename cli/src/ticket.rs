//! `acquire`, `renew` and `release`: a lease that several steps of a pipeline hold, one after the other.

use leasehold::{Error, Lease, Leases, Resumed, Ticket};

use super::{
    acquire::held,
    args::{AcquireTicket, OfTicket},
    exit::{Code, Failure},
    out, text,
};

/// Acquires a lease, and prints its ticket. Nothing renews the lease until a later command does.
pub async fn acquire(args: AcquireTicket, leases: &Leases) -> Result<Code, Failure> {
    let mut acquire = leases.acquire(&args.key, args.ttl).wait_for(args.wait);
    if args.shared {
        acquire = acquire.shared();
    }
    if let Some((permits, of)) = args.permits {
        acquire = acquire.permits(permits, of);
    }
    if let Some(owner) = &args.owner {
        acquire = acquire.owner(&**owner);
    }
    if let Some(note) = &args.note {
        acquire = acquire.note(&**note);
    }
    let lease = match acquire.await {
        Ok(lease) => lease,
        Err(error @ (Error::WaitTimedOut { .. } | Error::TooManyHolders { .. })) => {
            out::say(&held(&error));
            return Ok(Code::Held);
        }
        Err(error) => return Err(error.into()),
    };
    let ticket = lease.into_ticket();
    let ticket = serde_json::to_string(&ticket).map_err(std::io::Error::other)?;
    out::line(&ticket)
}

/// Renews the lease of a ticket for another ttl.
pub async fn renew(args: OfTicket, leases: &Leases) -> Result<Code, Failure> {
    let lease = match resume(&args, leases).await? {
        Ok(lease) => lease,
        Err(code) => return Ok(code),
    };
    // The ticket says what the one of before said, so the caller keeps that one.
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
