//! The command line.

use std::{ffi::OsString, io, path::PathBuf, time::Duration};

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use leasehold::Tick;

use super::exit::CODES;

/// Locks that free themselves when their holder dies
#[derive(Parser)]
#[command(name = "leasehold", version, max_term_width = 100, after_help = CODES)]
pub struct Args {
    /// Where the locks are; without it, in a file of this user
    #[arg(long, global = true, env = "LEASEHOLD_STORE", hide_env_values = true, value_name = "ADDRESS", long_help = STORE)]
    pub store: Option<String>,

    #[command(subcommand)]
    pub task: Task,
}

const STORE: &str = "Where the locks are: file:PATH; mongodb://HOST[:PORT][/DATABASE[.COLLECTION]]; \
     es+http://HOST:PORT[/ALIAS] or es+https; opensearch+http://HOST:PORT[/ALIAS] or \
     opensearch+https. Without it, in a file in this user's state folder. A password is better kept \
     in the environment: others see a command line";

#[derive(Subcommand)]
pub enum Task {
    /// Run a command under a lease, and end it if the lease is lost
    Run(Run),
    /// Keep a command running on one host, and start it elsewhere when that host dies
    Lead(Lead),
    /// Show who holds what
    Ls(Ls),
    /// Show the lock of one key
    Inspect(Inspect),
    /// Take a key from its holders
    Evict(Evict),
    /// Watch locks come and go
    Watch(Watch),
    /// Remove what has been free for long
    Purge {
        /// How long nobody has held it
        #[arg(long, default_value = "1d", value_name = "TIME", value_parser = time)]
        older_than: Duration,
    },
    /// Set the store up
    Prepare,
    /// See whether the store can be reached and used
    Doctor {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print completions for a shell
    Completions {
        /// Which one
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(clap::Args)]
pub struct Run {
    /// The key to lock: 1 to 512 bytes
    pub key: String,

    /// How long the lock outlives this process if it dies; while it lives the lease is renewed
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
    pub ttl: Duration,

    /// How long to wait for the key
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = time)]
    pub wait: Duration,

    /// Share the key with others that share it
    #[arg(long, conflicts_with = "permits")]
    pub shared: bool,

    /// Take so many of so many permits, as 1/4
    #[arg(long, value_name = "N/OF", value_parser = permits)]
    pub permits: Option<(u32, u32)>,

    /// Keep the key for this long although the command has ended before
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub min_hold: Option<Duration>,

    /// End the command in time so that the key is held for no longer than this, also by a command that hangs. At
    /// least the ttl
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub max_hold: Option<Duration>,

    /// Do this once: a date, a time, a version or a number, which names the run. If it was done before, on any
    /// host, or a later one was, the command does not run. It is done when the command has ended with 0
    #[arg(long, value_name = "TICK", conflicts_with_all = ["every", "shared", "permits", "min_hold"])]
    pub tick: Option<Tick>,

    /// Do this once in each period of so long, from 1s on, counted from 1970 on the server's clock
    #[arg(long, value_name = "TIME", value_parser = period, conflicts_with_all = ["shared", "permits", "min_hold"])]
    pub every: Option<Duration>,

    /// For how long the store keeps what is done; otherwise 30d. After that it may be done again
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub kept_for: Option<Duration>,

    /// Who this is, as others see it; otherwise the host and the process
    #[arg(long, env = "LEASEHOLD_OWNER", value_name = "NAME")]
    pub owner: Option<String>,

    /// A remark for people, which ls shows
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,

    /// How to end if the key is held
    #[arg(long, value_enum, default_value_t = OnHeld::Exit75, value_name = "HOW")]
    pub on_held: OnHeld,

    /// How long the command has between SIGTERM and SIGKILL; otherwise a third of the ttl, at most 10s.
    /// It has to fit into half of the ttl
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub grace: Option<Duration>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(clap::Args)]
pub struct Lead {
    /// The key that names what is led: 1 to 512 bytes
    pub key: String,

    /// How long the others wait before one of them takes over from a host that died
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
    pub ttl: Duration,

    /// Who this is, as others see it; otherwise the host and the process
    #[arg(long, env = "LEASEHOLD_OWNER", value_name = "NAME")]
    pub owner: Option<String>,

    /// A remark for people, which ls shows
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,

    /// How long the command has between SIGTERM and SIGKILL; otherwise a third of the ttl, at most 10s.
    /// It has to fit into half of the ttl
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub grace: Option<Duration>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnHeld {
    /// Exit with 0, because the holder does the work
    #[value(name = "exit-0")]
    Exit0,
    /// Exit with 75, so that the caller can try again
    #[value(name = "exit-75")]
    Exit75,
}

/// Which locks.
#[derive(clap::Args)]
pub struct Which {
    /// Only what this owner holds
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
}

#[derive(clap::Args)]
pub struct Ls {
    #[command(flatten)]
    pub which: Which,

    /// Also keys that nobody holds any more
    #[arg(long)]
    pub all: bool,

    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct Inspect {
    /// The key
    pub key: String,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct Evict {
    /// The key
    pub key: String,

    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(clap::Args)]
pub struct Watch {
    #[command(flatten)]
    pub which: Which,

    /// How often to look
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = time)]
    pub interval: Duration,

    /// Print a JSON object for each change
    #[arg(long)]
    pub json: bool,
}

/// The supervisor of a command. Only `run` and `lead` start it.
#[derive(Parser)]
#[command(name = "leasehold supervise")]
pub struct Supervise {
    /// Where the process that holds the lease listens
    #[arg(long)]
    pub socket: PathBuf,

    #[arg(long, value_parser = time)]
    pub grace: Duration,

    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Parses a time such as 30s, 5m or 1h 30m.
fn time(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}

/// Parses the length of a period.
fn period(text: &str) -> Result<Duration, String> {
    let period = time(text).map_err(|error| error.to_string())?;
    if period < Duration::from_secs(1) {
        return Err("a period is at least 1s".to_owned());
    }
    Ok(period)
}

fn permits(text: &str) -> Result<(u32, u32), String> {
    let parsed = || {
        let (permits, of) = text.split_once('/')?;
        Some((permits.parse().ok()?, of.parse().ok()?))
    };
    parsed().ok_or_else(|| "write it as 1/4: one of four".to_owned())
}

/// Writes the manual page of the command and of each of its subcommands.
pub fn man_page(out: &mut Vec<u8>) -> io::Result<()> {
    let mut command = Args::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(out)?;
    for task in command.get_subcommands() {
        if task.get_name() != "help" {
            let man = clap_mangen::Man::new(task.clone());
            man.render_name_section(out)?;
            man.render_synopsis_section(out)?;
            man.render_options_section(out)?;
        }
    }
    Ok(())
}
