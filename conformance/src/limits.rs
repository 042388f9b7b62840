//! A limiter grants no more permits in a window than its limit, by the server's clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, Violation, ensure, fresh_key, granted,
    guard::{pair, patient},
    refused, request, violation,
};
use leasehold::{
    Error, Key, PermitAttempt, Store,
    store::{GiveBackRequest, PermitAnswer, PermitId, PermitRequest, Quota},
};

/// A window that a property waits for. It is long enough for a slow server to answer a few times in it.
const WINDOW: Duration = Duration::from_millis(1_000);
/// A window that outlasts any property, unless a new window begins during the property.
const ENDLESS: Duration = Duration::from_secs(300 * 24 * 60 * 60);
const LIMIT: u32 = 10;
/// How many windows must be full to show that a new window has all permits again.
const FULL: usize = 3;
/// Within how many windows that must happen. The property takes place in only a part of the first and the last window.
const ROUNDS: u32 = 8;
/// A window long enough that even a slow machine can ask in each window.
const LONGEST_WINDOW: Duration = Duration::from_secs(64);

/// The permits that were granted in each window, by the server's clock.
#[derive(Debug)]
struct Windows {
    length: Duration,
    granted: BTreeMap<i64, u32>,
}

impl Windows {
    fn of(length: Duration) -> Self {
        let granted = BTreeMap::new();
        Self { length, granted }
    }

    fn count(&mut self, granted_at: DateTime<Utc>, permits: u32) {
        let window = granted_at
            .timestamp_millis()
            .div_euclid(self.length.as_millis() as i64);
        *self.granted.entry(window).or_default() += permits;
    }

    /// The number of windows in which all permits were granted.
    fn full(&self, limit: u32) -> usize {
        let full = |permits: &&u32| **permits >= limit;
        self.granted.values().filter(full).count()
    }

    fn check(&self, limit: u32) -> Outcome {
        match self.granted.values().max() {
            Some(most) if *most > limit => {
                violation(format!("{most} permits in a window of {limit}: {self:?}"))
            }
            _ => Ok(()),
        }
    }
}

fn fixed(limit: u32, window: Duration) -> Result<Quota, Violation> {
    Ok(Quota::fixed(limit, window)?)
}

fn ask(key: &Key, quota: Quota, permits: u32) -> PermitRequest {
    PermitRequest::new(key.clone(), PermitId::random(), quota, permits)
}

/// Asks for permits, and returns how many are granted.
async fn take(
    store: &Arc<dyn Store>,
    key: &Key,
    quota: Quota,
    permits: u32,
) -> Result<u32, Violation> {
    Ok(match store.permit(&ask(key, quota, permits)).await? {
        PermitAnswer::Granted { permits, .. } => permits,
        PermitAnswer::Full { .. } => 0,
    })
}

/// If many tasks ask at once through two clients, the limiter grants no more in a window of the server's clock than its
/// limit. The next window has all permits again.
pub async fn a_window_never_has_more_permits_than_its_limit(clients: &Clients) -> Outcome {
    let mut window = WINDOW;
    loop {
        let asked = ask_for_windows(clients, window).await?;
        if asked.full >= FULL {
            return Ok(());
        }
        // If each request takes at most half a window, the tasks ask in each window, and they are so many that no
        // permit is left.
        let was_slow = asked.slowest > window / 2;
        if !was_slow || window >= LONGEST_WINDOW {
            return violation(format!(
                "{} of {ROUNDS} windows of {window:?} were full, and no step took longer than {:?}",
                asked.full, asked.slowest
            ));
        }
        window *= 4;
    }
}

/// How the tasks asked.
struct Asked {
    /// How many windows were full.
    full: usize,
    /// The longest time that a task took for a request and the pause after it.
    slowest: Duration,
}

/// Makes the tasks ask until enough windows were full, or until enough windows have passed in which that was possible.
async fn ask_for_windows(clients: &Clients, window: Duration) -> Result<Asked, Violation> {
    /// Fewer permits than tasks, so that each task has to ask only once in a window.
    const FEW: u32 = 5;
    let (key, quota) = (fresh_key("limit")?, fixed(FEW, window)?);
    let windows = Arc::new(Mutex::new(Windows::of(window)));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let (store, key, windows) = (clients.of_task(number), key.clone(), windows.clone());
        tasks.spawn(async move {
            let mut slowest = Duration::ZERO;
            while windows.lock().full(FEW) < FULL && start.elapsed() < window * ROUNDS {
                let begin = Instant::now();
                match store.permit(&ask(&key, quota, 1)).await? {
                    PermitAnswer::Granted { granted_at, .. } => windows.lock().count(granted_at, 1),
                    PermitAnswer::Full { retry_in, .. } => {
                        // A request that is carried out after a later one may get the time of the window after its own.
                        let longest = window + begin.elapsed();
                        ensure!(
                            !retry_in.is_zero() && retry_in <= longest,
                            "a full window turns in {retry_in:?}"
                        );
                        // All tasks ask again when a new window begins, and a little earlier.
                        sleep(retry_in.min(LOOK * 10)).await;
                    }
                }
                slowest = slowest.max(begin.elapsed());
            }
            Ok::<_, Violation>(slowest)
        });
    }
    let mut slowest = Duration::ZERO;
    while let Some(done) = tasks.join_next().await {
        slowest = slowest.max(done??);
    }
    let windows = windows.lock();
    windows.check(FEW)?;
    Ok(Asked {
        full: windows.full(FEW),
        slowest,
    })
}

/// Permits that one caller asks for are granted all or none, to as many callers as there is room for.
pub async fn permits_that_belong_together_are_granted_together(clients: &Clients) -> Outcome {
    let (store, key, quota) = (
        &clients.first,
        fresh_key("together")?,
        fixed(LIMIT, ENDLESS)?,
    );
    let several = ask(&key, quota, 3).up_to(2);
    let answer = store.permit(&several).await?;
    ensure!(
        matches!(answer, PermitAnswer::Granted { permits: 6, .. }),
        "twice three of {LIMIT}: {answer:?}"
    );
    let (five, four) = (
        take(&clients.second, &key, quota, 5).await?,
        take(store, &key, quota, 4).await?,
    );
    ensure!(five == 0, "{five} of five were granted where four are left");
    ensure!(four == 4, "{four} of four that are left were granted");
    let answer = store.permit(&ask(&key, quota, 1).up_to(9)).await?;
    ensure!(
        matches!(answer, PermitAnswer::Full { retry_in, .. } if retry_in <= ENDLESS),
        "nothing is left: {answer:?}"
    );
    Ok(())
}

/// An answer says how many permits are left, and when all of them are back. A refusal takes none.
pub async fn an_answer_says_what_is_left(clients: &Clients) -> Outcome {
    let windows = fixed(LIMIT, ENDLESS)?;
    for (quota, most) in [(windows, LIMIT), (windows.smooth(4)?, 4)] {
        let key = fresh_key("left")?;
        for (store, permits, remaining) in [
            (&clients.first, 3, most - 3),
            (&clients.second, most, most - 3),
            (&clients.second, most - 3, 0),
            (&clients.first, 1, 0),
        ] {
            let answer = store.permit(&ask(&key, quota, permits)).await?;
            let (PermitAnswer::Granted { left, .. } | PermitAnswer::Full { left, .. }) = answer;
            ensure!(
                (left.limit, left.remaining) == (most, remaining),
                "{remaining} of {most} are left: {answer:?}"
            );
            ensure!(
                !left.reset_in.is_zero() && left.reset_in <= ENDLESS,
                "all are back in {ENDLESS:?} at the latest: {answer:?}"
            );
        }
    }
    Ok(())
}

/// A peek tells what is left, and takes nothing: not of a limiter that nobody has used, and not of one that is full.
pub async fn a_peek_takes_nothing(clients: &Clients) -> Outcome {
    let windows = fixed(LIMIT, ENDLESS)?;
    for (quota, most) in [(windows, LIMIT), (windows.smooth(4)?, 4)] {
        let key = fresh_key("peek")?;
        for (permits, remaining) in [(0, most), (3, most - 3), (most - 3, 0)] {
            if permits > 0 {
                let taken = take(&clients.first, &key, quota, permits).await?;
                ensure!(taken == permits, "{taken} of {permits} that a peek saw");
            }
            for store in [&clients.first, &clients.second, &clients.first] {
                let left = store.peek(&key, &quota).await?;
                ensure!(
                    (left.limit, left.remaining) == (most, remaining),
                    "{remaining} of {most} are left: {left:?}"
                );
                ensure!(
                    left.reset_in.is_zero() == (remaining == most) && left.reset_in <= ENDLESS,
                    "when all are back: {left:?}"
                );
            }
            let other = fixed(2, ENDLESS / 2)?;
            let left = clients.second.peek(&key, &other).await?;
            ensure!(left.remaining == 2, "another limiter has {left:?}");
        }
    }
    Ok(())
}

/// Permits that are given back are free again, but no others: not those of an earlier window, and not more than were
/// taken.
pub async fn permits_given_back_are_free_again(clients: &Clients) -> Outcome {
    let windows = fixed(LIMIT, ENDLESS)?;
    let day = TimeDelta::days(1);
    for (quota, most) in [(windows, LIMIT), (windows.smooth(4)?, 4)] {
        let key = fresh_key("give-back")?;
        let left = async |expected, of| {
            let left = clients.second.peek(&key, &quota).await?;
            let is_right = left.remaining == expected;
            ensure!(is_right, "{of} leaves {left:?} instead of {expected}");
            Ok(())
        };
        let give_back = async |permits, granted_at: DateTime<Utc>| {
            let request = GiveBackRequest::new(key.clone(), quota, permits, granted_at);
            Ok::<_, Violation>(clients.first.give_back(&request).await?)
        };
        give_back(3, Utc::now()).await?;
        left(most, "what nobody had taken").await?;
        let PermitAnswer::Granted { granted_at, .. } =
            clients.second.permit(&ask(&key, quota, 3)).await?
        else {
            return violation("a new limiter is full".to_owned());
        };
        let rest = take(&clients.second, &key, quota, most - 3).await?;
        ensure!(rest == most - 3, "{rest} of the rest");
        give_back(3, granted_at - day * 300).await?;
        left(0, "what was granted a window earlier").await?;
        give_back(3, granted_at + day).await?;
        left(0, "what was granted later than anything").await?;
        give_back(3, granted_at).await?;
        left(3, "what was granted").await?;
        ensure!(
            take(&clients.first, &key, quota, 4).await? == 0
                && take(&clients.first, &key, quota, 3).await? == 3,
            "three permits that were given back"
        );
        left(0, "what was taken again").await?;
        give_back(u32::MAX, granted_at).await?;
        left(most, "more than was taken").await?;
        let all = take(&clients.first, &key, quota, most).await?;
        ensure!(all == most, "{all} of all permits");
        let one = take(&clients.first, &key, quota, 1).await?;
        ensure!(one == 0, "there is one permit more than all");
    }
    Ok(())
}

/// A request that is repeated because its answer was lost takes its permits only once.
pub async fn a_repeated_request_takes_its_permits_once(clients: &Clients) -> Outcome {
    let (key, quota) = (fresh_key("repeat")?, fixed(5, ENDLESS)?);
    let request = ask(&key, quota, 2);
    for store in [&clients.first, &clients.second, &clients.first] {
        let answer = store.permit(&request).await?;
        ensure!(
            matches!(answer, PermitAnswer::Granted { permits: 2, .. }),
            "a repeated request: {answer:?}"
        );
    }
    let left = take(&clients.first, &key, quota, 3).await?;
    ensure!(left == 3, "a repeated request took its permits again");
    Ok(())
}

/// With a smooth limiter, permits come back one after the other. No span as long as the window has more grants than the
/// limit and the burst.
pub async fn smooth_permits_come_one_after_the_other(clients: &Clients) -> Outcome {
    let (key, quota) = (fresh_key("smooth")?, fixed(LIMIT, WINDOW)?.smooth(2)?);
    let spaced = quota.window() / quota.limit();
    let mut granted_at = Vec::new();
    let start = Instant::now();
    while granted_at.len() < 12 {
        ensure!(
            start.elapsed() < PATIENCE,
            "{} in {PATIENCE:?}",
            granted_at.len()
        );
        let request = ask(&key, quota, 1).up_to(LIMIT);
        match clients.of_task(granted_at.len()).permit(&request).await? {
            PermitAnswer::Granted {
                permits,
                granted_at: at,
                ..
            } => {
                ensure!(permits <= 2, "{permits} at once with a burst of 2");
                granted_at.extend((0..permits).map(|_| at));
            }
            PermitAnswer::Full { retry_in, .. } => {
                ensure!(
                    !retry_in.is_zero() && retry_in <= spaced,
                    "a permit comes every {spaced:?}, the next in {retry_in:?}"
                );
                sleep(retry_in).await;
            }
        }
    }
    // Between two grants that are this many permits apart, at least the time for those beyond the burst has passed.
    for (number, at) in granted_at.iter().enumerate() {
        for (earlier, before) in granted_at[..number].iter().enumerate() {
            let least = spaced
                * u32::try_from(number - earlier)
                    .unwrap_or(0)
                    .saturating_sub(1);
            let apart = (*at - *before).to_std().unwrap_or_default();
            ensure!(
                apart >= least,
                "{} permits within {apart:?}",
                number - earlier + 1
            );
        }
    }
    let several = take(&clients.first, &key, quota, 3).await?;
    ensure!(several == 0, "three at once with a burst of 2");
    Ok(())
}

/// Of two deployments with different bursts, the one with the smaller burst gives back no permits that the other one
/// took. Both together are granted no more than the greater burst and what has come back since then.
pub async fn a_smaller_burst_gives_nothing_back(clients: &Clients) -> Outcome {
    let key = fresh_key("bursts")?;
    let limit = fixed(10, WINDOW * 10)?;
    let (large, small) = (limit.smooth(10)?, limit.smooth(1)?);
    let begin = match clients.first.permit(&ask(&key, large, 10)).await? {
        PermitAnswer::Granted { granted_at, .. } => granted_at,
        PermitAnswer::Full { .. } => return violation("a new limiter is full"),
    };
    let start = Instant::now();
    while take(&clients.second, &key, small, 1).await? == 0 {
        ensure!(start.elapsed() < PATIENCE, "no permit in {PATIENCE:?}");
        sleep(limit.window() / limit.limit() / 10).await;
    }
    let request = ask(&key, large, 1).up_to(10);
    if let PermitAnswer::Granted {
        permits,
        granted_at,
        ..
    } = clients.first.permit(&request).await?
    {
        let passed = (granted_at - begin).to_std().unwrap_or_default();
        let back = passed.as_nanos() * u128::from(limit.limit()) / limit.window().as_nanos();
        ensure!(
            u128::from(permits) < back,
            "{permits} and 1 of the {back} that came back within {passed:?}"
        );
    }
    Ok(())
}

/// A limiter with another limit counts the permits that were taken before. Windows of another length or kind are
/// counted separately, whatever was stored.
pub async fn a_limiter_with_other_terms_goes_on(clients: &Clients) -> Outcome {
    let (first, second, key) = (&clients.first, &clients.second, fresh_key("terms")?);
    let taken = take(first, &key, fixed(5, ENDLESS)?, 5).await?;
    ensure!(taken == 5, "{taken} of a new limiter's five");
    let more = take(second, &key, fixed(8, ENDLESS)?, 3).await?;
    ensure!(
        more == 3,
        "a limit of eight has three more than one of five"
    );
    let less = take(first, &key, fixed(7, ENDLESS)?, 1).await?;
    ensure!(less == 0, "a limit of seven where eight are taken");
    let others = [
        fixed(2, ENDLESS / 2)?,
        fixed(2, ENDLESS)?.smooth(2)?,
        fixed(2, ENDLESS / 2)?.smooth(2)?,
    ];
    for quota in others {
        let own = take(second, &key, quota, 2).await?;
        ensure!(own == 2, "{quota:?} is full because of another");
    }
    for quota in others {
        let own = take(first, &key, quota, 1).await?;
        ensure!(own == 0, "{quota:?} has forgotten what was taken");
    }
    let again = take(first, &key, fixed(8, ENDLESS)?, 1).await?;
    ensure!(again == 0, "another window gave back what was taken");
    Ok(())
}

/// A limiter and a lock with the same key do not affect each other, whatever the key is.
pub async fn a_limiter_and_a_lock_may_have_one_key(clients: &Clients) -> Outcome {
    let quota = fixed(1, ENDLESS)?;
    let odd = ["$key.with/odd \u{1} text", "..", &"é".repeat(256)];
    let random = fresh_key("both")?;
    for key in odd.into_iter().chain([random.as_str()]) {
        let key = Key::new(key)?;
        let lock = request(&key, "holder", LONG);
        granted(&clients.first, &lock).await?;
        let one = take(&clients.second, &key, quota, 1).await?;
        ensure!(one == 1, "the limiter {key} is full where a lock is held");
        refused(&clients.second, &request(&key, "other", LONG)).await?;
        let two = take(&clients.first, &key, quota, 1).await?;
        ensure!(two == 0, "the limiter {key} forgot its permit");
        let state = super::sole_holder(&clients.first, &key).await?;
        ensure!(state.lease == lock.lease, "{key} has another holder");
    }
    Ok(())
}

/// A purge removes the limiters whose window is over, and none that still counts.
pub async fn a_purge_forgets_no_window_that_counts(clients: &Clients) -> Outcome {
    let (store, counting, over) = (&clients.first, fresh_key("counts")?, fresh_key("over")?);
    let quota = fixed(1, ENDLESS)?;
    take(store, &counting, quota, 1).await?;
    take(store, &over, fixed(1, Duration::from_millis(10))?, 1).await?;
    let start = Instant::now();
    // Others may purge the same place, so the number says nothing.
    while store.purge(Duration::ZERO).await? == 0 {
        ensure!(start.elapsed() < PATIENCE, "a limiter that is over stays");
        sleep(Duration::from_millis(100)).await;
    }
    let again = take(&clients.second, &counting, quota, 1).await?;
    ensure!(
        again == 0,
        "a purge forgot a permit of a window that is not over"
    );
    Ok(())
}

/// Waiting tasks of two clients get as many permits as the windows have, or nearly as many, and each permit goes to one
/// task.
pub async fn waiting_tasks_get_what_the_windows_have(clients: &Clients) -> Outcome {
    const WINDOWS: u32 = 3;
    let key = fresh_key("waiting")?;
    let (first, second) = pair(clients);
    let leases = [first, second];
    let mut tasks = JoinSet::new();
    for number in 0..20 {
        let limiter = leases[number % 2].limiter(&key, LIMIT, WINDOW);
        tasks.spawn(async move {
            let mut granted = Vec::new();
            for _ in 0..LIMIT * WINDOWS / 20 {
                granted.push(limiter.permit().wait_for(PATIENCE).await?.granted_at());
            }
            Ok::<_, Error>(granted)
        });
    }
    let mut windows = Windows::of(WINDOW);
    while let Some(done) = tasks.join_next().await {
        done??.into_iter().for_each(|at| windows.count(at, 1));
    }
    windows.check(LIMIT)?;
    let granted: u32 = windows.granted.values().sum();
    ensure!(granted == LIMIT * WINDOWS / 20 * 20, "{granted} permits");
    Ok(())
}

/// A full limiter says when to come back, a wait that cannot succeed ends at once, and an invalid request is refused
/// before anything is stored.
pub async fn a_full_limiter_says_so(clients: &Clients) -> Outcome {
    let leases = patient(&clients.first);
    let key = fresh_key("full")?;
    let limiter = leases.limiter(&key, 2, ENDLESS);
    limiter.permits(2).await?;
    match limiter.try_permit().await? {
        PermitAttempt::Full { retry_in, .. } => ensure!(
            !retry_in.is_zero() && retry_in <= ENDLESS,
            "come back in {retry_in:?}"
        ),
        PermitAttempt::Granted(_) => return violation("a third permit of two"),
    }
    let start = Instant::now();
    let in_vain = limiter.permit().wait_for(PATIENCE).await;
    ensure!(
        matches!(in_vain, Err(Error::LimitReached { .. })) && start.elapsed() < PATIENCE,
        "a wait in vain: {in_vain:?}"
    );
    let long = "x".repeat(513);
    let bad = [
        leases.limiter("", 1, WINDOW),
        leases.limiter(long, 1, WINDOW),
        leases.limiter(&key, 0, WINDOW),
        leases.limiter(&key, 1, Duration::ZERO),
        leases.limiter(
            &key,
            1,
            leasehold::limits::MAX_WINDOW + Duration::from_nanos(1),
        ),
        leases.limiter(&key, 1, WINDOW).smooth(0),
        leases.limiter(&key, 1, WINDOW).smooth(2),
    ];
    let mut seen = BTreeSet::new();
    for limiter in &bad {
        match limiter.permit().await {
            Err(error) if !error.is_retryable() => seen.insert(error.to_string()),
            other => return violation(format!("{limiter:?}: {other:?}")),
        };
    }
    ensure!(
        seen.len() == bad.len(),
        "two mistakes get one error: {seen:?}"
    );
    for permits in [0, 3] {
        let refused = limiter.permits(permits).await;
        ensure!(
            matches!(refused, Err(Error::InvalidPermits { .. })),
            "{permits} of two: {refused:?}"
        );
    }
    Ok(())
}
