//! The fault laboratory as a program. See `docs/evidence.md`.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, builder::PossibleValuesParser};
use leasehold_faults::{
    HANGS,
    broken::Wrong,
    check::{self, Kind, Violations},
    client,
    cluster::Cluster,
    durability::{self, SERVERS},
    history,
    lab::{ENGINES, Setup},
    network::Network,
    plan::Plan,
    report::{HEADER, HEADER_OF_CONTROLS, Report},
};

/// Causes faults in engines and in clients of leasehold, and checks the results.
///
/// The engines run one after the other. The report is Markdown. The exit code is 1 if there was a violation, or if a
/// deliberate error was not found.
#[derive(Parser)]
#[command(name = "leasehold-faults", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// An engine to test; may be given several times [default: all; with --wrong the engine of that error]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(ENGINES))]
    engine: Vec<String>,
    /// The minimum duration of each run; a run with --wrong ends when the error is found, and fails after this time
    /// [default: 60, with --wrong 300]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The seed of the schedule; the same seed makes the same schedule
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The servers have one fault in this time [default: 60, with --wrong 20]
    #[arg(long, value_name = "SECONDS")]
    period: Option<u64>,
    /// A deliberate error that must be found; all of them if none is named
    #[arg(long, value_name = "WHICH", value_enum, num_args = 0..)]
    wrong: Option<Vec<Wrong>>,
    /// Only check the histories that a run has kept in this folder
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["engine", "seconds", "seed", "period", "wrong"])]
    check: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command with a MongoDB replica set of three distant members, in MONGODB_THREE_URI, and with their distance
    /// in MONGODB_THREE_MILLIS
    Apart {
        /// The delay between two members
        #[arg(long, value_name = "N", default_value_t = 1)]
        millis: u64,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Kill standalone servers while they acknowledge grants, and check what they have afterwards
    Durability {
        /// A server to test; may be given several times [default: all]
        #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(SERVERS))]
        engine: Vec<String>,
        /// The number of kills of each server; with --wrong the maximum until a loss is found
        #[arg(long, value_name = "N", default_value_t = 40)]
        kills: u64,
        /// The seed of the kills; the same seed makes the same kills
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Remove `j: true` from the writes, which must be found
        #[arg(long)]
        wrong: bool,
    },
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    if let Some(task) = client::task() {
        client::work(task?).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse();
    let violations = match (&arguments.command, &arguments.check, &arguments.wrong) {
        (Some(Command::Apart { millis, command }), ..) => {
            return apart(Duration::from_millis(*millis), command).await;
        }
        (
            Some(Command::Durability {
                engine,
                kills,
                seed,
                wrong,
            }),
            ..,
        ) => survive(engine, *kills, *seed, *wrong).await,
        (_, Some(folder), _) => check(folder)?,
        (.., Some(wrong)) => find(&arguments, wrong).await,
        _ => run(&arguments).await,
    };
    println!();
    for violation in &violations {
        println!("- {:?}: {}", violation.kind, violation.text);
    }
    let tried_wrong = matches!(
        (&arguments.command, &arguments.wrong),
        (Some(Command::Durability { wrong: true, .. }), _) | (_, Some(_))
    );
    match (violations.len(), tried_wrong) {
        (0, false) => println!("Nothing is violated."),
        (0, true) => println!("What is wrong was found."),
        (1, _) => println!("\nOne violation."),
        (many, _) => println!("\n{many} violations."),
    }
    Ok(ExitCode::from(u8::from(!violations.is_empty())))
}

async fn apart(by: Duration, command: &[OsString]) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command")?;
    let network = Network::default();
    let mut cluster = Cluster::start("mongodb-three", &network).await?;
    network.set_distance(cluster.members(), by);
    let address = cluster.address(0, HANGS).await?;
    let mut command = tokio::process::Command::new(program);
    let ran = command
        .args(arguments)
        .env("MONGODB_THREE_URI", address)
        .env("MONGODB_THREE_MILLIS", by.as_millis().to_string());
    let status = ran.status().await;
    cluster.stop().await;
    let code = status?.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// The given names, or all names if none is given.
fn chosen(given: &[String], all: &[&'static str]) -> Vec<&'static str> {
    let is_given = |name: &&&str| given.is_empty() || given.iter().any(|it| it == **name);
    all.iter().filter(is_given).copied().collect()
}

async fn run_on(engine: &'static str, plan: Plan) -> Result<Report> {
    eprintln!("{engine}: starts");
    let mut setup = Setup::start(engine, &env::current_exe()?).await?;
    let report = setup.run(plan).await;
    setup.stop().await;
    report
}

async fn run(arguments: &Arguments) -> Violations {
    let lasts = Duration::from_secs(arguments.seconds.unwrap_or(60));
    let period = Duration::from_secs(arguments.period.unwrap_or(60));
    let plan = Plan {
        lasts,
        seed: arguments.seed,
        period: Some(period.min(lasts)),
        workers: 15,
        dawdles: 200,
        locks_only: false,
        wrong: Wrong::Nothing,
    };
    println!("{HEADER}");
    let mut violations = Violations::new();
    for engine in chosen(&arguments.engine, &ENGINES) {
        match run_on(engine, plan).await {
            Ok(report) => {
                println!("{report}");
                violations.extend(report.violations);
            }
            // The other engines still run.
            Err(error) => violations.push(Kind::Run.of(format!("{engine}: {error:#}"))),
        }
    }
    violations
}

/// Tries deliberate errors. An error that is not found is a violation.
async fn find(arguments: &Arguments, wrong: &[Wrong]) -> Violations {
    let each = if wrong.is_empty() {
        &Wrong::EACH
    } else {
        wrong
    };
    println!("{HEADER_OF_CONTROLS}");
    let mut violations = Violations::new();
    for wrong in each.iter().copied() {
        let engines = match &arguments.engine[..] {
            [] => vec![wrong.tried_on()],
            given => chosen(given, &ENGINES),
        };
        let plan = Plan {
            lasts: Duration::from_secs(arguments.seconds.unwrap_or(300)),
            seed: arguments.seed,
            period: Some(Duration::from_secs(arguments.period.unwrap_or(20))),
            workers: 15,
            dawdles: 5,
            locks_only: false,
            wrong,
        };
        for engine in engines {
            match run_on(engine, plan).await {
                Ok(report) => {
                    println!("{}", report.of_control());
                    if !report.is_caught() {
                        let text = format!("{engine}: not found: {}", wrong.name());
                        violations.push(Kind::Run.of(text));
                    }
                }
                Err(error) => violations.push(Kind::Run.of(format!("{engine}: {error:#}"))),
            }
        }
    }
    violations
}

fn check(folder: &Path) -> Result<Violations> {
    let processes = history::read_each(folder).with_context(|| folder.display().to_string())?;
    let events = processes.concat();
    let (orders, ticks) = (check::orders(&events).judged, check::ticks(&events));
    let guarded = check::guarded(&events);
    println!(
        "{} operations, {} grants from memory, {} recalls, {orders} orders judged, {} ticks done by {} runs, {} guarded writes and {} late ones refused, \
         {} late writes without a guard",
        check::operations(&events),
        check::from_memory(&events),
        check::recalls_heard(&events),
        ticks.done,
        ticks.runs,
        guarded.written,
        guarded.refused,
        guarded.late_without,
    );
    Ok(check::all_processes(&processes))
}

async fn survive(engine: &[String], kills: u64, seed: u64, wrong: bool) -> Violations {
    println!("{}", durability::HEADER);
    let mut violations = Violations::new();
    for server in chosen(engine, &SERVERS) {
        let run = if wrong {
            durability::is_caught(server, kills, seed).await
        } else {
            durability::survives(server, kills, seed).await
        };
        match run {
            Ok(outcome) => {
                println!("{}", outcome.row);
                violations.extend(outcome.violations);
            }
            Err(error) => violations.push(Kind::Run.of(format!("{server}: {error:#}"))),
        }
    }
    violations
}
