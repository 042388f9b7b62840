//! `limit`: takes a permit of a limiter, and then becomes the command.
//!
//! The permit of a command that runs is not given back, so no process has to stay with it. While this process waits, it
//! holds nothing either, so a signal may end it in the usual way. (With several rates it may hold a permit of one. That
//! then counts.)

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use leasehold::{Error, Leases, Limiter};

use super::{
    args::Limit,
    exit::{Code, Failure},
    out, text,
};

pub async fn limit(limit: Limit, leases: &Leases) -> Result<Code, Failure> {
    let rates = limit.rate.iter();
    let limiters = rates.map(|(permits, window)| leases.limiter(&limit.key, *permits, *window));
    let Some(mut limiter) = limiters.reduce(Limiter::and) else {
        return Err(Failure::Usage("it needs a rate".to_owned()));
    };
    if let Some(burst) = limit.burst {
        limiter = limiter.smooth(burst);
    }
    match limiter.permit().wait_for(limit.wait).await {
        Ok(permit) => {
            let code = become_command(&limit.command);
            // Nothing ran. If the permit cannot be given back, it counts, and the code says why nothing ran.
            let _ = permit.give_back().await;
            Ok(code)
        }
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
