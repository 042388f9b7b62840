//! The acquire of `run`: with a tick or without.

use leasehold::{Acquire, Error, Lease, Leases, jobs::OnceAttempt};

use super::{
    args::{LeaseArgs, Run},
    exit::Code,
    out, text,
    tick::{self, RunLease},
};

/// Acquires the lease for the command. Returns an exit code instead if the command must not run.
pub async fn acquire(run: &Run, leases: &Leases) -> Result<Result<RunLease, Code>, Error> {
    Ok(match tick::acquire(run, leases).await.transpose()? {
        None => Ok(RunLease::Plain(acquire_plain(run, leases).await?)),
        Some(OnceAttempt::Acquired(lease)) => Ok(RunLease::Once(lease)),
        Some(OnceAttempt::Done(done)) => {
            run.say(&format!("{}: {done}", text::name(&run.key)));
            Err(Code::Done)
        }
        Some(OnceAttempt::Superseded { tick, done }) => {
            let error = Error::Superseded { tick, done };
            out::say(&format!("{}: {error}", text::name(&run.key)));
            Err(Code::Superseded)
        }
        Some(OnceAttempt::Held(held)) => {
            let waited = run.lease.wait;
            run.say(&self::held(&Error::WaitTimedOut { waited, held }));
            Err(run.on_held.into())
        }
    })
}

impl Run {
    /// Says what is no error.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            out::say(text);
        }
    }
}

impl LeaseArgs {
    /// The same acquire, with these options.
    pub fn set_on(&self, acquire: Acquire) -> Acquire {
        let mut acquire = acquire.wait_for(self.wait);
        if self.shared {
            acquire = acquire.shared();
        }
        if let Some((permits, of)) = self.permits {
            acquire = acquire.permits(permits, of);
        }
        if let Some(owner) = &self.owner {
            acquire = acquire.owner(&**owner);
        }
        if self.take_over {
            acquire = acquire.take_over();
        }
        if let Some(note) = &self.note {
            acquire = acquire.note(&**note);
        }
        acquire
    }
}

async fn acquire_plain(run: &Run, leases: &Leases) -> Result<Lease, Error> {
    let acquire = leases.acquire(&run.key, run.ttl).keep_alive();
    let mut acquire = run.lease.set_on(acquire);
    if let Some(time) = run.min_hold {
        acquire = acquire.min_hold(time);
    }
    if let Some(time) = run.max_hold {
        acquire = acquire.max_hold(time);
    }
    acquire.await
}

/// The message that the key is held.
pub fn held(error: &Error) -> String {
    match error {
        Error::WaitTimedOut { held, .. } => {
            if held.holders().is_empty() {
                format!("{held}, for {} or less", text::short(held.binds_for()))
            } else {
                format!("{held}, for {} or longer", text::short(held.expires_in()))
            }
        }
        error => error.to_string(),
    }
}
