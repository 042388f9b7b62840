//! The engines of a run of several programs. Each engine is started once for all of them.
//!
//! One program serves the engines, on a Unix socket. The other programs have the path of the socket in their
//! environment. A program connects, sends the name of an engine in a line, and gets its address in another line.
//! Engines start one after the other, because each needs the whole machine to start.

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

/// The address of an engine, from the program that serves those of this run. `None` if there is no such program.
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

/// Serves engines until standard input ends, and they end with it. The engines with these names start before a program
/// asks for them.
pub fn serve(socket: &Path, early: Vec<String>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    thread::spawn(move || {
        for name in early {
            // If this fails, a program that asks for the engine gets the error.
            drop(found(&name));
        }
    });
    thread::spawn(|| {
        let end = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(i32::from(end.is_err()));
    });
    for connection in listener.incoming() {
        let connection = connection?;
        // A program that asks for a running engine does not wait for the start of another one.
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
