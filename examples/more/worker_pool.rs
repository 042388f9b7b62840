//! A pool of workers for many documents. Only one worker at a time works on a document.
//!
//! In memory, without a server, or on a real one (MongoDB, Elasticsearch, OpenSearch):
//!
//! ```text
//! cargo run -p leasehold-examples --example worker_pool
//! cargo run -p leasehold-examples --example worker_pool -- --store mongodb://localhost/app
//! cargo run -p leasehold-examples --example worker_pool -- --store http://localhost:9200/app-locks
//! ```
//!
//! The workers are tasks. They coordinate only through the store, as separate processes would. One of them dies while
//! it works on a document, and another worker finishes that document.
//!
//! # How it works
//!
//! The key of a lock is the id of a document. A worker tries to acquire it without waiting, and skips documents that
//! are held, because there is other work. **Once it has the lock, it reads the document again**: another worker may
//! have finished it after the first worker listed it.
//!
//! # When to use it
//!
//! Use it if the documents exist anyway, and the workers may take them in any order. If each piece of work must be
//! handed out once and in order, a queue is the better tool. A worker that is paused for longer than its ttl still
//! writes: if that does harm, show the fence with each write (docs/fencing.md).

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use clap::Parser;
use futures::TryStreamExt;
use leasehold::{Attempt, Error, Fence, Filter, Leases, Store};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::sleep};

const DOCUMENTS: usize = 40;
const WORKERS: usize = 5;
/// How long a document waits if its worker has died.
const TTL: Duration = Duration::from_secs(2);
const WORK: Duration = Duration::from_millis(20);
/// The pause of a worker that has found no free document.
const PAUSE: Duration = Duration::from_millis(100);

/// A document of the application, in its own collection.
#[derive(Clone, Default)]
struct Order {
    begun: Vec<Fence>,
    at_work: usize,
    most_at_work: usize,
    /// How often a worker gave up the document: its lease ended before it was done, or it died.
    given_up: usize,
    done: usize,
}

type Orders = Arc<Mutex<Vec<Order>>>;

/// Works until every document is done.
async fn worker(
    name: String,
    store: Arc<dyn Store>,
    orders: Orders,
    dies_at: Option<usize>,
) -> Result<()> {
    let leases = Leases::builder(store).owner(name.as_str()).build();
    let mut finished = 0;
    loop {
        let open = open_orders(&orders);
        if open.is_empty() {
            println!("{name} did {finished} documents.");
            leases.close().await;
            return Ok(());
        }
        let before = finished;
        for order in open {
            let lock = leases
                .try_acquire(format!("order {order}"), TTL)
                .keep_alive();
            let lease = match lock.await {
                Ok(Attempt::Acquired(lease)) => lease,
                // The document comes up again. Another worker holds it, or there was no answer in time.
                Ok(Attempt::Held(_)) | Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if begin(&orders, order, lease.fence()) {
                let dies = dies_at == Some(finished);
                let done = !dies
                    && tokio::select! {
                        () = sleep(WORK) => true,
                        _ = lease.lost() => false,
                    };
                let done = end(&orders, order, lease.fence(), done);
                if dies {
                    println!("{name} dies with document {order} in its hands.");
                    // A killed process leaves this: a lock that nobody renews or releases.
                    drop(lease.detach());
                    return Ok(());
                }
                finished += usize::from(done);
            }
            // The lease is dropped, so it is released in the background. `close` waits for that.
        }
        if finished == before {
            // Other workers hold the remaining documents.
            sleep(PAUSE).await;
        }
    }
}

/// Some of the open documents, in a random order, so that not all workers try the same one first.
fn open_orders(orders: &Orders) -> Vec<usize> {
    let orders = orders.lock();
    let mut open: Vec<_> = (0..orders.len())
        .filter(|&order| orders[order].done == 0)
        .collect();
    fastrand::shuffle(&mut open);
    open
}

/// Marks a document as begun. Returns `false` if it is done already, or if a worker with a greater fence has begun it.
fn begin(orders: &Orders, order: usize, fence: Fence) -> bool {
    let order = &mut orders.lock()[order];
    if order.done > 0 || order.begun.last() > Some(&fence) {
        return false;
    }
    order.begun.push(fence);
    order.at_work += 1;
    order.most_at_work = order.most_at_work.max(order.at_work);
    true
}

/// Records that a worker has ended its work on a document. Returns whether the document is done by this worker, which
/// it is not if a worker with a greater fence has begun it.
fn end(orders: &Orders, order: usize, fence: Fence, done: bool) -> bool {
    let order = &mut orders.lock()[order];
    order.at_work -= 1;
    let done = done && order.begun.last() == Some(&fence);
    order.done += usize::from(done);
    order.given_up += usize::from(!done);
    done
}

/// A pool of workers, with one worker at a time for each document.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let store = args.store.open().await?;
    let orders: Orders = Arc::new(Mutex::new(vec![Order::default(); DOCUMENTS]));
    let mut workers = JoinSet::new();
    for number in 1..=WORKERS {
        // The first worker dies, with its first document. The others begin later, so that a document is left for it.
        let dies_at = (number == 1).then_some(0);
        let name = format!("worker {number}");
        workers.spawn(worker(name, store.clone(), orders.clone(), dies_at));
        while orders.lock().iter().all(|order| order.begun.is_empty())
            && workers
                .try_join_next()
                .map(|ended| ended?)
                .transpose()?
                .is_none()
        {
            sleep(WORK / 10).await;
        }
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }

    let orders = orders.lock().clone();
    ensure!(
        orders.iter().all(|order| order.done == 1),
        "each should be done once"
    );
    // A worker that paused for longer than the ttl can work at the same time as the next holder. The fence makes its
    // late changes harmless.
    ensure!(
        orders
            .iter()
            .all(|order| order.most_at_work <= 1 + order.given_up),
        "two at one document"
    );
    let again = orders.iter().filter(|order| order.begun.len() > 1);
    let again: Vec<_> = again.map(|order| &order.begun).collect();
    ensure!(!again.is_empty(), "what was left should be begun again");
    let rises = |fences: &&Vec<Fence>| fences.is_sorted_by(|one, next| one < next);
    ensure!(again.iter().all(rises), "the fence should rise");
    let filter = Filter::new().prefix("order ").live();
    let left: Vec<_> = Leases::new(store).list(filter).try_collect().await?;
    ensure!(left.is_empty(), "{} locks were left", left.len());
    println!(
        "All {DOCUMENTS} are done, each once; what one had left, another did with a greater fence."
    );
    Ok(())
}
