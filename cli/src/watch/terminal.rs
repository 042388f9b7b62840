//! The screen of `watch` at a terminal: it looks, reads keys, draws, and evicts what was asked for.

use std::{io, mem::ManuallyDrop, pin::pin, time::Duration};

use anstream::{AutoStream, ColorChoice};
use chrono::Utc;
use futures::{
    FutureExt, StreamExt, TryStreamExt,
    future::{BoxFuture, Fuse, FusedFuture},
    stream::FuturesUnordered,
};
use leasehold::{Leases, LockState, Store, address::Opened};
use ratatui::{
    DefaultTerminal,
    crossterm::{
        cursor::Show,
        event::{Event as Input, EventStream},
        execute,
    },
};
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::{
    draw::draw,
    rows::Lease,
    view::{Effect, Event, View, outcome_of},
};
use crate::{
    args::Watch,
    evict::evict_lease,
    exit::{Code, Failure},
    out,
    signals::Signals,
};

/// A look that has taken this long is said to have no answer yet.
const SLOW: Duration = Duration::from_secs(3);
/// How often the screen is drawn at least. Only that shows that the terminal is gone, if SIGHUP is ignored: `EventStream`
/// reads its end for ever.
const DRAWN: Duration = Duration::from_secs(2);
/// How long the answers of evictions are waited for at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// An eviction: its lease, and whether that had its key, or the error.
type Eviction<'a> = BoxFuture<'a, (Lease, Result<bool, String>)>;

/// Shows the screen until a key or a signal ends it.
pub async fn show(watch: &Watch, leases: &Leases, opened: &Opened) -> Result<Code, Failure> {
    // A signal that came between the change of the terminal and this would leave the terminal changed.
    let signals = Signals::new()?;
    let screen = Screen::enter()?;
    let mut evictions = FuturesUnordered::new();
    let view = View::new(&opened.place, watch.interval);
    let shown = run(
        watch,
        leases,
        &*opened.store,
        (screen, view, signals),
        &mut evictions,
    )
    .await;
    // The terminal is as it was, so what came of the last evictions is printed.
    let answers = async {
        while let Some((lease, outcome)) = evictions.next().await {
            out::say(&outcome_of(&lease, outcome));
        }
    };
    if timeout(LAST_ANSWERS, answers).await.is_err() {
        out::say("an eviction has no answer: nobody can tell whether it was done");
    }
    shown
}

async fn run<'a>(
    watch: &Watch,
    leases: &Leases,
    store: &'a dyn Store,
    (mut screen, mut view, mut signals): (Screen, View, Signals),
    evictions: &mut FuturesUnordered<Eviction<'a>>,
) -> Result<Code, Failure> {
    let mut keys = EventStream::new();
    let mut looks = interval(watch.interval);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draws = interval(DRAWN);
    draws.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = pin!(Fuse::terminated());
    let mut slow = None;
    let has_colours = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    loop {
        screen.0.draw(|frame| draw(frame, &mut view, has_colours))?;
        let event = tokio::select! {
            signal = signals.end() => return Ok(signal.into()),
            input = keys.next() => match input {
                Some(Ok(Input::Key(key))) => Event::Key(key),
                // The size of the terminal has changed, for example. It is drawn anew.
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(Code::Done),
            },
            _ = draws.tick() => continue,
            _ = looks.tick(), if look.is_terminated() => {
                look.set(look_at(watch, leases).fuse());
                slow = Some(Instant::now() + SLOW);
                continue;
            }
            found = &mut look, if !look.is_terminated() => {
                slow = None;
                found?
            }
            () = sleep_until(slow.unwrap_or_else(Instant::now)), if slow.is_some() => {
                slow = None;
                Event::NotLooked(format!("no answer for {} s", SLOW.as_secs()))
            }
            Some((lease, outcome)) = evictions.next() => {
                looks.reset_immediately();
                Event::Evicted(lease, outcome)
            }
        };
        match view.step(event) {
            Effect::Nothing => {}
            Effect::Evict(lease) => evictions.push(evict(lease, store).boxed()),
            Effect::Quit => return Ok(Code::Done),
            Effect::Interrupt => return Ok(Signal::INT.into()),
        }
    }
}

/// Looks once. It fails with an error that a retry cannot fix.
async fn look_at(watch: &Watch, leases: &Leases) -> Result<Event, Failure> {
    let filter = watch.which.filter().live();
    let locks: Result<Vec<LockState>, _> = leases.list(filter).try_collect().await;
    match locks {
        Ok(locks) => Ok(Event::Looked(locks, Utc::now())),
        Err(error) if error.is_retryable() => {
            Ok(Event::NotLooked(Failure::from(error).to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

async fn evict(lease: Lease, store: &dyn Store) -> (Lease, Result<bool, String>) {
    let outcome = evict_lease(&lease.key, lease.id, store).await;
    let outcome = outcome.map_err(|error| Failure::from(error).to_string());
    (lease, outcome)
}

/// The terminal in raw mode with the alternate screen. It is restored when this is dropped, and by the hook of ratatui
/// when a thread panics.
///
/// The terminal of ratatui is not dropped: it would show the cursor, print a failure of that to standard error, and panic
/// if standard error is the same terminal, which is gone.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    fn enter() -> io::Result<Self> {
        // It may fail after a part of the change.
        let entered = ratatui::try_init().inspect_err(|_| leave());
        entered.map(ManuallyDrop::new).map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// A failure is ignored: the terminal may be gone.
fn leave() {
    let _ = ratatui::try_restore();
    let _ = execute!(io::stdout(), Show);
}
