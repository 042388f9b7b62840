//! `ls` and `inspect`.

use futures::TryStreamExt;
use leasehold::{Filter, Leases, LockState, jobs::Done};
use serde_json::{Value, json};

use super::{
    args::{Inspect, Ls, Which},
    exit::{Code, Failure},
    out, state, text,
};

impl Which {
    pub fn filter(&self) -> Filter {
        let mut filter = Filter::new();
        if let Some(owner) = &self.owner {
            filter = filter.owner(&**owner);
        }
        if let Some(prefix) = &self.prefix {
            filter = filter.prefix(&**prefix);
        }
        filter
    }
}

/// Lists the locks of the store at this place.
pub async fn ls(ls: Ls, leases: &Leases, place: &str) -> Result<Code, Failure> {
    let filter = if ls.all {
        ls.which.filter()
    } else {
        ls.which.filter().live()
    };
    let locks: Vec<LockState> = leases.list(filter).try_collect().await?;
    if ls.json {
        out::json(&locks.iter().map(state::json).collect::<Value>())
    } else if locks.is_empty() {
        // The message is for people. It goes to standard error, so that a program reads no row.
        out::say(&format!("nobody holds anything in {place}"));
        Ok(Code::Done)
    } else {
        let code = out::line(&state::table(&locks))?;
        state::from_a_clock_ahead(&locks).for_each(|line| out::say(&line));
        Ok(code)
    }
}

/// Prints the newest done tick, if there is one.
fn show(done: Option<Done>) -> Result<Code, Failure> {
    match done {
        Some(done) => out::line(&state::done_line(&done)),
        None => Ok(Code::Done),
    }
}

pub async fn inspect(inspect: Inspect, leases: &Leases) -> Result<Code, Failure> {
    let lock = leases.inspect(&inspect.key).await?;
    let held = lock.as_ref().is_some_and(|lock| !lock.is_free());
    match (lock, inspect.json) {
        (Some(lock), true) => out::json(&state::json(&lock))?,
        (None, true) => {
            let free = json!({
                "key": inspect.key, "held": false, "fence": null, "now": null,
                "holders": [], "waiters": [], "done": null,
            });
            out::json(&free)?
        }
        (Some(mut lock), false) if held || !lock.waiters.is_empty() => {
            // The line has more than the row of the table would have.
            let done = lock.done.take();
            let locks = [lock];
            out::line(&state::table(&locks))?;
            state::from_a_clock_ahead(&locks).for_each(|line| out::say(&line));
            show(done)?
        }
        (lock, false) => {
            let key = text::visible(&inspect.key);
            out::line(&match &lock {
                Some(lock) => format!("{key} is free; its newest fence was {}", lock.fence),
                None => format!("{key} is free, and nothing is remembered of it"),
            })?;
            show(lock.and_then(|lock| lock.done))?
        }
    };
    Ok(if held { Code::Done } else { Code::No })
}
