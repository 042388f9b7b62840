//! Signals that this process forwards to the command that it runs.

use std::{fs, io};

use futures::{FutureExt, future::select_all};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

const FORWARDED: [Signal; 7] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// Listens for signals, and keeps each one until [`next`](Signals::next) returns it.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens from now on. If this process was started with a signal ignored, as `nohup` does, the signal stays
    /// ignored, and the command inherits that.
    pub fn new() -> io::Result<Self> {
        let ignored = ignored();
        let listened = FORWARDED.into_iter().filter(|signal| {
            let bit = 1_u64 << (signal.as_raw() - 1);
            ignored & bit == 0
        });
        listened
            .map(|signal| {
                let kind = SignalKind::from_raw(signal.as_raw());
                Ok((signal, unix::signal(kind)?))
            })
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Waits for the next signal.
    ///
    /// Cancel safe: a signal that came stays until a call returns it.
    pub async fn next(&mut self) -> Signal {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let each = self.0.iter_mut().map(|(signal, came)| {
            let signal = *signal;
            async move {
                came.recv().await;
                signal
            }
            .boxed()
        });
        select_all(each).await.0
    }

    /// Waits for the next signal that asks a program to end.
    pub async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if Self::ends(signal) {
                return signal;
            }
        }
    }

    /// Whether a signal asks a program to end.
    pub fn ends(signal: Signal) -> bool {
        !matches!(signal, Signal::USR1 | Signal::USR2 | Signal::WINCH)
    }
}

/// The signals that were ignored when this process was started, as bits; none on systems that do not show them.
fn ignored() -> u64 {
    // The name of the program in it may be cut within a character.
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
