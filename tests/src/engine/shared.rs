//! The engines of a run of several programs, each started once for all of them.
//!
//! One program serves them, on a Unix socket whose path the others have in the environment. Who connects says
//! the name of an engine in a line, and is told its address in another one. Engines start one after the other,
//! since each needs the whole machine for that.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process,
    sync::Mutex,
    thread,
    time::Instant,
};

use super::Engine;

/// The variable with the path of the socket.
const SOCKET: &str = "LEASEHOLD_ENGINES";
const READY: &str = "ready ";
const FAILED: &str = "failed ";

/// The address of an engine, from whoever serves those of this run. None if nobody does.
pub(super) fn ask(engine: Engine) -> Option<Result<String, String>> {
    let socket = env::var_os(SOCKET)?;
    let answer = exchange(Path::new(&socket), engine);
    Some(answer.unwrap_or_else(|error| Err(format!("nobody answers at {SOCKET}: {error}"))))
}

fn exchange(socket: &Path, engine: Engine) -> io::Result<Result<String, String>> {
    let mut connection = UnixStream::connect(socket)?;
    writeln!(connection, "{}", engine.name())?;
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer)?;
    let answer = answer.trim_end();
    Ok(match answer.strip_prefix(READY) {
        Some(address) => Ok(address.to_owned()),
        None => Err(answer.trim_start_matches(FAILED).to_owned()),
    })
}

/// Serves engines until standard input ends, and all of them with it. Those with these names start before
/// anybody asks for them.
pub fn serve(socket: &Path, early: Vec<String>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    thread::spawn(move || {
        for name in early {
            // Who asks for it is told what is wrong.
            drop(found(&name));
        }
    });
    thread::spawn(|| {
        let end = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(i32::from(end.is_err()));
    });
    for connection in listener.incoming() {
        let connection = connection?;
        // Who asks for an engine that runs does not wait for the start of another.
        thread::spawn(move || {
            if let Err(error) = answer(connection) {
                eprintln!("engines: {error}");
            }
        });
    }
    Ok(())
}

fn answer(mut connection: UnixStream) -> io::Result<()> {
    let mut name = String::new();
    BufReader::new(&connection).read_line(&mut name)?;
    match found(name.trim_end()) {
        Ok(address) => writeln!(connection, "{READY}{address}"),
        Err(problem) => writeln!(connection, "{FAILED}{}", problem.replace('\n', " ")),
    }
}

fn found(name: &str) -> Result<String, String> {
    match Engine::ALL.into_iter().find(|engine| engine.name() == name) {
        Some(engine) => engine.found(|| start(engine)),
        None => Err("there is no such engine".to_owned()),
    }
}

fn start(engine: Engine) -> Result<String, String> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock();
    let begin = Instant::now();
    let found = engine.find();
    drop(turn);
    let (name, seconds) = (engine.name(), begin.elapsed().as_secs());
    match &found {
        Ok(_) => eprintln!("engines: {name} runs, after {seconds} s"),
        Err(problem) => eprintln!("engines: {name} does not run: {problem}"),
    }
    found
}
