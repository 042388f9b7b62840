//! `limit`: takes a permit of a limiter, and then becomes the command.
//!
//! A permit is not given back, so nothing is left to do while the command runs: no process has to stay with it. While
//! this process waits, it holds nothing either, so a signal may end it in the usual way.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use leasehold::{Error, Leases};

use super::{
    args::Limit,
    exit::{Code, Failure},
    out, text,
};

pub async fn limit(limit: Limit, leases: &Leases) -> Result<Code, Failure> {
    let (permits, window) = limit.rate;
    let mut limiter = leases.limiter(&limit.key, permits, window);
    if let Some(burst) = limit.burst {
        limiter = limiter.smooth(burst);
    }
    match limiter.permit().wait_for(limit.wait).await {
        Ok(_) => Ok(become_command(&limit.command)),
        Err(Error::LimitReached { retry_in, .. }) => {
            let (key, retry_in) = (text::name(&limit.key), text::short(retry_in));
            out::say(&format!("{key} is at its limit: try again in {retry_in}"));
            Ok(Code::Held)
        }
        Err(error) => Err(error.into()),
    }
}

/// Replaces this process by the command that consists of these words. Returns only if that fails.
fn become_command(words: &[OsString]) -> Code {
    let Some((program, arguments)) = words.split_first() else {
        return Code::Usage;
    };
    let error = Command::new(program).args(arguments).exec();
    Code::cannot_run(program, &error)
}
