//! The code of the child process.

use std::{
    io::{BufRead, stdin},
    process,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use leasehold::{Lease, Leases};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt,
    runtime::Handle,
    sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinSet,
    time::timeout,
};

use super::{ACQUIRING, Acquired, Closed, Event, Kept, Order, PREFIX, closing, seen::Seen};
use crate::{counted, cpu, rss::Rss};

/// How many tasks acquire at the same time.
const TASKS: usize = 256;
/// How long the child waits until dropped memory and tasks are gone.
const CALM: Duration = Duration::from_secs(2);

/// Runs the child process.
pub async fn child() -> Result<()> {
    let (order, close) = orders()?;
    let (store, commands) =
        counted::store(order.engine, &order.address, &order.database, &order.place).await?;
    let seen = Arc::new(Seen {
        commands,
        clock_margin: store.clock_margin(),
        state: Mutex::default(),
    });
    let leases = Leases::new(store);
    let (granted, new) = unbounded_channel();
    let watching = tokio::spawn(seen.clone().losses(new));
    let looking = tokio::spawn(seen.clone().look());

    seen.state.lock().phase = "acquiring";
    let acquired = acquire(&order, &leases, &seen, &granted).await?;
    tell(&Event::Acquired(acquired)).await?;

    let (begin, sent, used) = (Instant::now(), seen.count(), cpu::used());
    {
        let mut state = seen.state.lock();
        (state.phase, state.tasks, state.commands_at_most) = ("keeping", 0, 0.0);
    }
    tokio::time::sleep(order.hold).await;
    let kept = {
        let state = seen.state.lock();
        Kept {
            seconds: begin.elapsed().as_secs_f64(),
            commands: seen.count() - sent,
            commands_at_most: state.commands_at_most,
            cpu_seconds: (cpu::used() - used).as_secs_f64(),
            longest_without_renewal: state.longest_without_renewal.as_secs_f64(),
            // The two tasks that observe the leases are not counted.
            tasks: state.tasks.saturating_sub(2),
        }
    };
    tell(&Event::Kept(kept)).await?;

    close.await.context("nobody says when to close")?;
    // Leases that the close ends are not counted as lost.
    watching.abort();
    let rss_at_most = Rss::of_this_process()?.peak;
    let lost = {
        let mut state = seen.state.lock();
        for (reason, times) in &state.reasons {
            eprintln!("    {times} times {reason}");
        }
        state.phase = "closing";
        state.lost
    };
    let (begin, sent) = (Instant::now(), seen.count());
    let ended = timeout(closing(order.ttl), leases.close()).await.is_ok();
    let (seconds, commands) = (begin.elapsed().as_secs_f64(), seen.count() - sent);
    looking.abort();
    drop((leases, granted));
    drop(std::mem::take(&mut *seen.state.lock()));
    tokio::time::sleep(CALM).await;
    let closed = Closed {
        seconds,
        commands,
        lost,
        ended,
        rss_at_most,
        rss: Rss::of_this_process()?.now,
        tasks: Handle::current().metrics().num_alive_tasks(),
    };
    tell(&Event::Closed(closed)).await
}

/// Reads the order, and returns a channel that tells when to close. A thread reads them, because a runtime at its end
/// waits for its own readers of the standard input.
fn orders() -> Result<(Order, oneshot::Receiver<()>)> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    let order = serde_json::from_str(&line)?;
    let (close, told) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = stdin().lock().lines();
        if let Some(Ok(_)) = lines.next() {
            let _ = close.send(());
            lines.next();
        }
        // The measuring process has ended.
        process::exit(1);
    });
    Ok((order, told))
}

async fn acquire(
    order: &Order,
    leases: &Leases,
    seen: &Arc<Seen>,
    granted: &UnboundedSender<Arc<Lease>>,
) -> Result<Acquired> {
    let (begin, sent) = (Instant::now(), seen.count());
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS.min(order.leases) {
        let (leases, seen, granted) = (leases.clone(), seen.clone(), granted.clone());
        let (next, all, ttl) = (next.clone(), order.leases, order.ttl);
        tasks.spawn(async move {
            while begin.elapsed() < ACQUIRING {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= all {
                    return;
                }
                let key = format!("{PREFIX}{number:06}");
                let asked = leases.acquire(key, ttl).wait_for(ttl).keep_alive();
                match asked.await.map(Arc::new) {
                    Ok(lease) => {
                        let _ = granted.send(lease.clone());
                        seen.state.lock().leases.push(lease);
                    }
                    Err(error) => seen.state.lock().fail(&error),
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    let state = seen.state.lock();
    Ok(Acquired {
        seconds: begin.elapsed().as_secs_f64(),
        commands: seen.count() - sent,
        granted: state.leases.len(),
        failed: state.failed,
        lost: state.lost,
        rss: Rss::of_this_process()?.now,
    })
}

async fn tell(event: &Event) -> Result<()> {
    let mut out = tokio::io::stdout();
    let line = format!("{}\n", serde_json::to_string(event)?);
    out.write_all(line.as_bytes()).await?;
    Ok(out.flush().await?)
}
