//! The command `leasehold`: runs commands under a lease, shows locks, and frees them.
//!
//! `leasehold --help` is the reference; `docs/cli.md` says how to use the command.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]
#![deny(clippy::unimplemented, clippy::unreachable, clippy::indexing_slicing)]

#[cfg(not(unix))]
compile_error!("the command `leasehold` is for Unix: it needs process groups and signals");

mod acquire;
mod address;
mod args;
mod channel;
mod clock;
mod columns;
mod doctor;
mod evict;
mod exit;
mod job_control;
mod lead;
mod limit;
mod list;
mod messages;
mod out;
mod place;
mod process_tree;
mod run;
mod signals;
mod state;
mod supervisor;
mod terminal;
mod terms;
mod text;
mod tick;
mod ticket;
mod verbose;
mod waiting;
mod watch;

use std::{env, ffi::OsString, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser};
use leasehold::Leases;
use tokio::time::timeout;

use self::{
    address::Make,
    args::{Args, Task},
    exit::{Code, Failure},
};

/// How long this process waits for the background releases before it exits.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of a purge, which may have to remove very many documents.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs on one thread. For the kernel, the parent of a process is the thread that started it, and that thread must not
/// end before the process does.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Only `run` and `lead` start the supervisor, so it is no subcommand in the help.
    let ended = match env::args_os().nth(1) {
        Some(word) if word == "supervise" => {
            supervisor::supervise(parsed(env::args_os().skip(1))).await
        }
        _ => work(parsed(env::args_os())).await,
    };
    match ended {
        Ok(code) => code.into(),
        // The reader of the output has closed the pipe, as `head` does. That is not a failure.
        Err(failure) if failure.is_broken_pipe() => Code::Done.into(),
        Err(failure) => {
            out::say(&failure.to_string());
            failure.code().into()
        }
    }
}

/// Parses a command line. The line may contain a password, so an error about an address repeats no part of it.
fn parsed<A: Parser>(words: impl Iterator<Item = OsString>) -> A {
    A::try_parse_from(words).unwrap_or_else(|error| {
        let text = error.to_string();
        if error.use_stderr() && (text.contains('@') || text.contains("://")) {
            out::say(&format!("{}; try --help", error.kind()));
            std::process::exit(Code::Usage.into());
        }
        error.exit()
    })
}

async fn work(args: Args) -> Result<Code, Failure> {
    match args.task {
        Task::Completions { shell } => {
            let (mut command, mut bytes) = (Args::command(), Vec::new());
            clap_complete::generate(shell, &mut command, "leasehold", &mut bytes);
            return out::raw(&bytes);
        }
        Task::Man => {
            let mut bytes = Vec::new();
            args::man_page(&mut bytes)?;
            return out::raw(&bytes);
        }
        _ => {}
    }
    if args.verbose {
        verbose::begin();
    }
    let make = match args.task {
        Task::Run(_) | Task::Lead(_) | Task::Limit(_) | Task::Acquire(_) | Task::Prepare => {
            Make::IfMissing
        }
        _ => Make::Never,
    };
    let (address, make) = match args.store {
        Some(address) => (address, make),
        // A default address cannot be mistyped, so its file is created.
        None => (place::of_this_user()?, Make::IfMissing),
    };
    let opened = match (address::open(&address, make).await, &args.task) {
        (Ok(opened), _) => opened,
        (Err(error), Task::Doctor { json }) => return doctor::nowhere(error, *json),
        (Err(error), _) => return Err(error.into()),
    };
    let leases = Leases::new(opened.store.clone());
    let outcome = match args.task {
        Task::Run(run) => run::run(run, &leases, opened.store.clock_margin()).await,
        Task::Lead(lead) => lead::lead(lead, &leases, opened.store.clock_margin()).await,
        Task::Limit(limit) => limit::limit(limit, &leases).await,
        Task::Ls(ls) => list::ls(ls, &leases, &opened.place).await,
        Task::Inspect(inspect) => list::inspect(inspect, &leases).await,
        Task::Acquire(args) => ticket::acquire(args, &leases).await,
        Task::Renew(args) => ticket::renew(args, &leases).await,
        Task::Release(args) => ticket::release(args, &leases).await,
        Task::Evict(evict) => evict::evict(evict, &leases, &*opened.store).await,
        Task::Watch(watch) => watch::watch(watch, args.verbose, &leases, &opened).await,
        Task::Purge { older_than } => {
            let leases = Leases::builder(opened.store.clone()).call_timeout(DAY);
            evict::purge(older_than, &leases.build()).await
        }
        Task::Prepare => {
            address::prepare(&opened).await?;
            out::line(&format!("{} is prepared", opened.place))
        }
        Task::Doctor { json } => doctor::doctor(&opened, &leases, json).await,
        // These two have returned above.
        Task::Completions { .. } | Task::Man => Ok(Code::Done),
    };
    // If the release does not end in time, the lease is free when its ttl is over.
    let _ = timeout(CLOSE_TIMEOUT, leases.close()).await;
    outcome.map_err(|failure| failure.at(&opened.place))
}
