//! Signals that are for the command that is run.

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

/// Those that came and were not yet asked for.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens from now on, except to those that this process was started to ignore, as `nohup` does: so
    /// will the command.
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

    /// The next one.
    ///
    /// Cancel safe: a signal that came stays until it is told.
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

    /// The next one that asks to end.
    pub async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if Self::ends(signal) {
                return signal;
            }
        }
    }

    /// Whether a signal asks to end, and not for something that a program may do.
    pub fn ends(signal: Signal) -> bool {
        !matches!(signal, Signal::USR1 | Signal::USR2 | Signal::WINCH)
    }
}

/// The signals that this process was started to ignore, as bits; none where that is not told.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
