//! How many commands a process sends while it waits in turn.

use std::time::Duration;

use leasehold::{
    Key, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, Earlier, LeaseId, ReleaseRequest, Turn},
};

use super::{Engine, Fixture, LONG};

/// A process asks so rarely that each of its requests is likely to write its place again.
const STAYS: Duration = Duration::from_secs(50);
/// A process asks so often that most of its requests write nothing.
const SOON: Duration = Duration::from_millis(750);

fn ask() -> AcquireRequest {
    let (key, lease) = (Key::new("key").unwrap(), LeaseId::random());
    AcquireRequest::exclusive(key, lease, "me".into(), LONG).fresh()
}

#[tokio::test]
async fn who_waits_sends_one_command_each_time_that_it_asks() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (collection, commands) = Fixture::new(engine).watched().await;
        let store = MongoStore::new(&collection);
        let holder = ask();
        store.acquire(&holder).await.unwrap();
        let [first, second] = [(); 2].map(|()| LeaseId::random());
        let wait = |waiter, earlier| {
            let mut request = ask().turn(Turn::in_turn(waiter, STAYS));
            request.earlier = earlier;
            request
        };
        let sent = async |request: &AcquireRequest, granted: bool| {
            commands.take();
            let answer = store.acquire(request).await.unwrap();
            let is_granted = matches!(answer, AcquireAnswer::Granted(_));
            assert_eq!(is_granted, granted, "{answer:?}");
            commands.names()
        };
        // The short statement cannot take a place, so a second statement follows.
        for waiter in [first, second] {
            let names = sent(&wait(waiter, Earlier::None), false).await;
            assert_eq!(names, ["findAndModify", "findAndModify"]);
        }
        for waiter in [first, second] {
            let mut again = wait(waiter, Earlier::Refused);
            assert_eq!(sent(&again, false).await, ["findAndModify"], "{STAYS:?}");
            again.turn = Turn::in_turn(waiter, SOON);
            assert_eq!(sent(&again, false).await, ["findAndModify"], "{SOON:?}");
        }
        let release = ReleaseRequest::new(holder.key.clone(), holder.lease);
        store.release(&release).await.unwrap();
        let mut own = wait(first, Earlier::Refused);
        own.turn = Turn::in_turn(first, SOON);
        assert_eq!(sent(&own, true).await, ["findAndModify"]);
        let state = store.inspect(&holder.key).await.unwrap().unwrap();
        let left: Vec<_> = state.waiters.iter().map(|place| place.waiter).collect();
        assert_eq!(left, [second], "the grant has ended its place");
    }
}
