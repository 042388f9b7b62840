//! How a task waits: to the end, for a while, or without polling its future.

use std::{fmt, pin::pin, time::Duration};

use leasehold::Key;
use tokio::time::{Instant, sleep, timeout};

use super::{CALL, Task};
use crate::{course::CALL_TIMEOUT, judge::Judge, ledger::Wait};

/// Longer than all tasks together can have a key, each until its ttl is over.
const FOR_EVER: Duration = Duration::from_secs(30_000);

impl Task {
    /// A wait of this task that begins now.
    pub fn wait(&self, keys: &[Key]) -> Wait {
        Wait {
            client: self.client,
            keys: keys.to_vec(),
            began: Instant::now(),
            is_in_turn: false,
            is_shared: false,
            idle: Duration::ZERO,
            polled_since: None,
            silences: 0,
            turns: 0,
            last_turn: None,
            passed: Vec::new(),
        }
    }

    /// Waits for what the task asked for, unless it drops the future, and perhaps does not poll it for a while. `None` if
    /// the future was dropped.
    pub async fn awaits<T, E: fmt::Display>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
        mut wait: Wait,
        limit: Option<Duration>,
    ) -> (Option<Result<T, E>>, Wait) {
        wait.polled_since = Some(Instant::now());
        let number = self.ledger.waits(wait.clone());
        let is_long = self.server.course.leaves_futures;
        let (alone, often) = if is_long { (30_000, 30) } else { (1_500, 10) };
        let driven = self.millis(if self.now_and_then(50) { 0 } else { 200 });
        let kind = self.below(100);
        let is_left = (15..15 + often).contains(&kind);
        let slack = 2 * (Duration::from_millis(alone) + driven);
        let slack = if is_left { slack } else { Duration::ZERO };
        let bound = limit.map_or(FOR_EVER, |limit| limit + CALL_TIMEOUT + CALL / 2);
        let asked = self.within(bound + slack, asked);
        let asked = async {
            let answer = asked.await;
            (answer, self.ledger.waited(number))
        };
        let mut asked = pin!(asked);
        let _gone = OnDrop(|| drop(self.ledger.waited(number)));
        let answer = match kind {
            0..15 => timeout(self.millis(300), asked).await.ok(),
            _ if is_left => 'answer: {
                for _ in 0..2 {
                    let alone = self.millis(alone);
                    // It is polled once, or for a while.
                    if let Ok(done) = timeout(driven, asked.as_mut()).await {
                        break 'answer Some(done);
                    }
                    self.ledger.polls(number, false);
                    if !is_long && !wait.keys.is_empty() {
                        self.server.state().note_trouble(Instant::now() + alone);
                    }
                    sleep(alone).await;
                    self.ledger.polls(number, true);
                }
                Some(asked.await)
            }
            _ => Some(asked.await),
        };
        let Some((answer, waited)) = answer else {
            self.count("dropped");
            self.say(|| "has dropped its future".to_owned());
            return (None, wait);
        };
        if let Err(error) = &answer {
            self.count("refused");
            self.say(|| format!("is refused: {error}"));
        }
        (Some(answer), waited.unwrap_or(wait))
    }

    /// Waits for a call that must not take longer than this.
    pub async fn within<T>(&self, bound: Duration, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let is_wrong = self.is_wrong(Judge::Bound);
        let bound = if is_wrong {
            Duration::from_millis(1)
        } else {
            bound
        };
        if let Ok(answer) = timeout(bound, call.as_mut()).await {
            return answer;
        }
        if !self.ledger.is_gone(self.client) {
            let text = format!("a call of client {} takes more than {bound:?}", self.client);
            self.server.state().accuse(Judge::Bound, text);
        }
        call.await
    }
}

/// Does something when it is dropped.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
