//! The command line.

use std::{ffi::OsString, io, time::Duration};

use clap::{ArgGroup, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use leasehold::{Holder, jobs::Tick};

use super::exit::CODES;

/// Locks that free themselves when their holder dies
///
/// A lock is a key with a holder, in a database or in a file. It is free when its holder releases it, or when the
/// holder has died and its time to live (ttl) is over.
#[derive(Parser)]
#[command(name = "leasehold", version, max_term_width = 100, after_help = CODES)]
pub struct Args {
    /// Where the locks are; by default in a file of this user
    #[arg(long, global = true, env = "LEASEHOLD_STORE", hide_env_values = true, value_name = "ADDRESS", long_help = STORE)]
    pub store: Option<String>,

    /// Write what the library does to standard error
    #[arg(long, short, global = true)]
    pub verbose: bool,

    #[command(subcommand)]
    pub task: Task,
}

const STORE: &str = "Where the locks are. ADDRESS is one of:

  file:PATH
  mongodb://HOST[:PORT][/DATABASE[.COLLECTION]]
  mongodb+srv://HOST[/DATABASE[.COLLECTION]]
  classic+mongodb://...: MongoDB without pipelines in updates, such as Amazon DocumentDB
  es+http://HOST:PORT[/ALIAS] or es+https://...: Elasticsearch
  opensearch+http://HOST:PORT[/ALIAS] or opensearch+https://...: OpenSearch
  http://... or https://...: whichever of the two answers

Put ?scripts=stored after the alias if the cluster forbids inline scripts. By default the locks are in a file in this \
user's state folder. Keep an address with a password in the environment, because other users of the host can see a \
command line";

const CRONTAB: &str = r#"In the crontab of each host, a job that runs once a night (cron needs a backslash before %):
    LEASEHOLD_STORE=mongodb://db.example/app
    */10 2-5 * * * /usr/local/bin/leasehold run report --tick "$(date +\%F)" -- /opt/report.sh"#;

#[derive(Subcommand)]
pub enum Task {
    /// Run a command under a lease, and end the command if the lease is lost
    ///
    /// The lease is renewed while the command runs, and released when the command has ended. If somebody else holds the
    /// key, the command does not run. The command gets the key and the fence in LEASEHOLD_KEY and LEASEHOLD_FENCE, and
    /// its tick, if any, in LEASEHOLD_TICK. Work that it starts elsewhere, as by docker run or ssh, is not ended with it.
    #[command(after_long_help = CRONTAB)]
    Run(Run),
    /// Keep a command running on one host at a time, and start it elsewhere when that host dies
    ///
    /// Start this on several hosts. One of them runs the command, and the others wait. When the command ends, it is
    /// started again, here or on another host. The command gets the key and the fence in LEASEHOLD_KEY and
    /// LEASEHOLD_FENCE.
    Lead(Lead),
    /// Run a command if a limiter has a permit for it, on whatever host; exits with 75 if it has none
    ///
    /// The permit counts from its grant, by the clock of the store, and is not given back: --rate 10/1s lets at most 10
    /// commands start in each second. All commands of a key need the same --rate and --burst. The command takes the place
    /// of this process, and nothing ends it.
    Limit(Limit),
    /// List the keys that are held, their holders, and the processes that wait
    Ls(Ls),
    /// Show the lock of one key; exits with 1 if the key is free
    Inspect(Inspect),
    /// Acquire a lease that lasts over several commands, and print its ticket
    ///
    /// The ticket is one line of JSON, for `leasehold renew` and `leasehold release`. Nothing else renews the lease, so the
    /// ttl must cover the time until the next of these commands, and this host may die meanwhile.
    Acquire(AcquireTicket),
    /// Renew the lease of a ticket for another ttl; exits with 76 if the lease is lost
    Renew(OfTicket),
    /// Release the lease of a ticket; exits with 76 if the lease was lost
    Release(OfTicket),
    /// Take a key from its holders, at once
    ///
    /// The holders learn of it with their next renewal, and may work until then. With --owner, --lease or --fence only
    /// the holder of that name, lease or fence loses the key, and a process that was granted the key meanwhile keeps it.
    Evict(Evict),
    /// Show the locks as they come and go
    ///
    /// At a terminal this is a screen like that of top, with keys: arrows, j, k, PgUp, PgDn, Home and End select a row,
    /// s changes the order, e evicts the selected lease after a question, and q ends it. Otherwise, and with --json, it
    /// is a line for each holder that comes or goes. What comes and goes between two looks is not seen.
    Watch(Watch),
    /// Remove the locks that have been free for long, and the limiters that no longer count
    Purge {
        /// How long a lock must have been free
        #[arg(long, default_value = "1d", value_name = "TIME", value_parser = time)]
        older_than: Duration,
    },
    /// Set up the store; this can be repeated
    Prepare,
    /// Check whether the store can be reached and used
    Doctor {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(clap::Args)]
#[command(group(ArgGroup::new("ticks").args(["tick", "every"])))]
pub struct Run {
    /// The key to lock: 1 to 512 bytes of text
    pub key: String,

    /// How long the lock stays if this process dies, such as 30s, 5m or 1h 30m; at least 1s. While the process lives,
    /// it renews the lease
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
    pub ttl: Duration,

    #[command(flatten)]
    pub lease: LeaseArgs,

    /// Keep the key for at least this long, even if the command ends earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub min_hold: Option<Duration>,

    /// Hold the key for at most this long, even if the command hangs: the command is ended in time. At least the ttl
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub max_hold: Option<Duration>,

    /// Run the command once for this tick: a date, a time, a version or a whole number
    ///
    /// If this tick was done before, on any host, the command does not run, and the exit code is 0. If a later tick was
    /// done before, this one is left out, whether it ran or not: the command does not run, and the exit code is 65. So
    /// give each version of a migration a key of its own. The tick is done when the command has ended with 0. A date or
    /// a time may be at most two days ahead of this host's clock. All ticks of a key must be of one kind.
    #[arg(long, value_name = "TICK", value_parser = super::tick::parse, conflicts_with_all = ["every", "shared", "permits", "min_hold"])]
    pub tick: Option<Tick>,

    /// Run the command once in each period of this length, at least 1s
    ///
    /// The periods are counted from 1970 in UTC, on the server's clock: 1d begins at 00:00 UTC, 7d on a Thursday. Start
    /// the command in the middle of a period.
    #[arg(long, value_name = "TIME", value_parser = period, conflicts_with_all = ["shared", "permits", "min_hold"])]
    pub every: Option<Duration>,

    /// How long the store remembers that a tick is done; by default 30d. After that time it may be done again
    ///
    /// A time past the year 9999 is for ever: 9000years, for the version of a migration.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "ticks")]
    pub kept_for: Option<Duration>,

    /// Say nothing but errors: not who holds the key, nor that the tick is done. For cron, which sends a mail otherwise
    #[arg(long, short)]
    pub quiet: bool,

    /// How to exit if the key is held
    #[arg(long, value_enum, default_value_t = OnHeld::Exit75, value_name = "HOW")]
    pub on_held: OnHeld,

    /// How long the command has between SIGTERM and SIGKILL; by default a third of the ttl, at most 10s. It must fit
    /// into half of the ttl
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub grace: Option<Duration>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The lease that `run` and `acquire` ask for.
#[derive(clap::Args)]
pub struct LeaseArgs {
    /// How long to wait for the key if it is held
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = time)]
    pub wait: Duration,

    /// Share the key with other holders that share it
    #[arg(long, conflicts_with = "permits")]
    pub shared: bool,

    /// Take some of the permits of the key, such as 1/4 for one of four
    #[arg(long, value_name = "N/OF", value_parser = permits)]
    pub permits: Option<(u32, u32)>,

    /// The name that others see as the holder; by default made of the host and the process
    #[arg(long, env = "LEASEHOLD_OWNER", value_name = "NAME")]
    pub owner: Option<String>,

    /// End the lease that this owner has of the key, and take its place: for a command that was started again after a
    /// crash
    #[arg(long, requires = "owner")]
    pub take_over: bool,

    /// A remark for people, which ls shows
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

#[derive(clap::Args)]
pub struct Lead {
    /// The key that names what is led: 1 to 512 bytes of text
    pub key: String,

    /// How long the other hosts wait before one of them takes over from a host that died, such as 30s; at least 1s
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = time)]
    pub ttl: Duration,

    /// The name that others see as the holder; by default made of the host and the process
    #[arg(long, env = "LEASEHOLD_OWNER", value_name = "NAME")]
    pub owner: Option<String>,

    /// A remark for people, which ls shows
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,

    /// How long the command has between SIGTERM and SIGKILL; by default a third of the ttl, at most 10s. It must fit
    /// into half of the ttl
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub grace: Option<Duration>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(clap::Args)]
pub struct Limit {
    /// The key that names what is limited: 1 to 512 bytes of text
    pub key: String,

    /// How many commands may start in how long, such as 10/1s or 1000/1d, in windows of the store's clock. If it is given
    /// several times, a command needs a permit of each
    #[arg(long, value_name = "N/TIME", required = true, value_parser = rate)]
    pub rate: Vec<(u32, Duration)>,

    /// Spread the permits of each rate evenly over the time, and let at most N commands start at once after a pause
    #[arg(long, value_name = "N")]
    pub burst: Option<u32>,

    /// How long to wait for a permit. It ends as soon as it is certain that there will be none in this time
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = time)]
    pub wait: Duration,

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

/// Selects locks.
#[derive(clap::Args)]
pub struct Which {
    /// Only the locks that this owner holds
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Only the keys that begin with this text
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
}

#[derive(clap::Args)]
pub struct Ls {
    #[command(flatten)]
    pub which: Which,

    /// Also the keys that are free, but remembered
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

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,

    /// Only the holders with this name
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Only the holder with this lease, as `inspect --json` shows it
    #[arg(long, value_name = "ID")]
    pub lease: Option<String>,

    /// Only the holders with this fence
    #[arg(long, value_name = "FENCE")]
    pub fence: Option<i64>,
}

impl Evict {
    /// Whether the command line names a holder.
    pub fn names_a_holder(&self) -> bool {
        self.owner.is_some() || self.lease.is_some() || self.fence.is_some()
    }

    /// Whether this holder is to be evicted.
    pub fn names(&self, holder: &Holder) -> bool {
        let owner = self.owner.as_deref().is_none_or(|it| it == &*holder.owner);
        let lease = self.lease.as_deref();
        let lease = lease.is_none_or(|it| it == holder.lease.to_string());
        owner && lease && self.fence.is_none_or(|it| it == holder.fence.get())
    }
}

#[derive(clap::Args)]
pub struct AcquireTicket {
    /// The key to lock: 1 to 512 bytes of text
    pub key: String,

    /// How long the lease lasts, unless it is renewed or released before, such as 20m; at least 1s
    #[arg(long, value_name = "TIME", value_parser = period)]
    pub ttl: Duration,

    #[command(flatten)]
    pub lease: LeaseArgs,
}

#[derive(clap::Args)]
pub struct OfTicket {
    /// The line that `leasehold acquire` has printed
    pub ticket: String,
}

#[derive(clap::Args)]
pub struct Watch {
    #[command(flatten)]
    pub which: Which,

    /// How often to look at the store
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = time)]
    pub interval: Duration,

    /// Print a JSON object for each change
    #[arg(long)]
    pub json: bool,
}

/// The supervisor of a command. Only `run` and `lead` start it. Its standard input is its connection to them.
#[derive(Parser)]
#[command(name = "leasehold supervise")]
pub struct Supervise {
    #[arg(long, value_parser = time)]
    pub grace: Duration,

    /// The process group of the process with the lease, if the command may have the terminal.
    #[arg(long)]
    pub job: Option<i32>,

    /// Whether the command has the terminal from its start.
    #[arg(long, requires = "job")]
    pub foreground: bool,

    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Parses a time such as 30s, 5m or 1h 30m.
fn time(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}

/// Parses the length of a period or a ttl.
fn period(text: &str) -> Result<Duration, String> {
    let period = time(text).map_err(|error| error.to_string())?;
    if period < Duration::from_secs(1) {
        return Err("it is at least 1s".to_owned());
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

/// Parses a rate such as 10/1s.
fn rate(text: &str) -> Result<(u32, Duration), String> {
    let parsed = || {
        let (permits, window) = text.split_once('/')?;
        Some((permits.parse().ok()?, time(window).ok()?))
    };
    parsed().ok_or_else(|| "write it as 10/1s: ten in each second".to_owned())
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
