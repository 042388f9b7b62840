//! Several operating-system processes on one engine.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use leasehold::{Error, Fence, MongoStore, fencing::GuardedCollection};
use leasehold_tests::{
    late_conversions,
    processes::{self, Place, fencing, limits},
};
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};

use super::{DATABASE, Engine, Fixture, heard, listeners::Listening};

/// Not a test of its own: this is the work of a process that a test has started. Without a task it
/// does nothing.
#[tokio::test]
async fn the_work_of_a_process() {
    if let Some((task, kind, address, name)) = processes::task() {
        let client = Client::with_uri_str(address).await.unwrap();
        let locks = client.database(DATABASE).collection::<Document>(&name);
        let store = MongoStore::new(&locks);
        match task.as_str() {
            "wait and tell" => {
                let deaf = kind == "deaf";
                heard::wait(
                    store,
                    if deaf {
                        Listening::Deaf
                    } else {
                        Listening::Open
                    },
                )
                .await;
            }
            "stale" => {
                let client = locks.client().clone();
                fencing::stale(Arc::new(store), &Documents::of(&client, &name)).await;
            }
            task => processes::work(task, Arc::new(store)).await,
        }
    }
}

/// Documents of an application, beside the locks.
struct Documents(Collection<Document>);

impl Documents {
    fn of(client: &Client, locks: &str) -> Self {
        let database = client.database(DATABASE);
        Self(database.collection(&format!("{locks}_documents")))
    }

    async fn find(&self, id: &str) -> Document {
        self.0.find_one(doc! { "_id": id }).await.unwrap().unwrap()
    }
}

#[async_trait]
impl fencing::Documents for Documents {
    async fn create(&self, id: &str) {
        let new = doc! { "_id": id, "number": 0_i64 };
        self.0.insert_one(new).await.unwrap();
    }

    async fn read(&self, id: &str, fence: Option<Fence>) -> Result<u64, Error> {
        let document = match fence {
            Some(fence) => {
                let guarded = GuardedCollection::new(&self.0, fence);
                guarded.claim(id).await?.unwrap()
            }
            None => self.find(id).await,
        };
        Ok(document.get_i64("number").unwrap() as u64)
    }

    async fn write(
        &self,
        id: &str,
        number: u64,
        by: &str,
        fence: Option<Fence>,
    ) -> Result<(), Error> {
        let filter = doc! { "_id": id };
        let update = doc! { "$set": { "number": number as i64, "by": by } };
        let written = match fence {
            Some(fence) => {
                let guarded = GuardedCollection::new(&self.0, fence);
                guarded.update_one(filter, update).await?
            }
            None => self.0.update_one(filter, update).await.unwrap(),
        };
        assert_eq!(written.matched_count, 1);
        Ok(())
    }

    async fn writer(&self, id: &str) -> String {
        self.find(id).await.get_str("by").unwrap().to_owned()
    }
}

fn place(engine: Engine) -> Place {
    place_of(&Fixture::new(engine))
}

pub fn place_of(fixture: &Fixture) -> Place {
    Place {
        kind: "mongodb",
        address: fixture.uri.clone(),
        name: fixture.name.clone(),
    }
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed() {
    let take_over = async |engine| {
        processes::takeover_from_a_killed_process(&place(engine)).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(take_over)).await;
}

#[tokio::test]
async fn processes_that_are_killed_while_they_wait_block_nobody() {
    let kill = async |engine| {
        let fixture = Fixture::new(engine);
        let store = Arc::new(fixture.store().await);
        processes::waiting_processes_are_killed(&place_of(&fixture), store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(kill)).await;
}

#[tokio::test]
async fn processes_that_stand_still_while_they_wait_block_nobody() {
    let stop = async |engine| {
        let fixture = Fixture::new(engine);
        let store = Arc::new(fixture.store().await);
        processes::waiting_processes_are_stopped(&place_of(&fixture), store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(stop)).await;
}

#[tokio::test]
async fn the_tasks_of_a_process_have_one_place() {
    let wait = async |engine| {
        let store = Arc::new(Fixture::new(engine).store().await);
        processes::the_tasks_of_a_process_have_one_place(store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(wait)).await;
}

#[tokio::test]
async fn the_first_asks_once_a_second_behind_a_long_job() {
    let wait = async |engine| {
        let store = Arc::new(Fixture::new(engine).store().await);
        processes::the_first_asks_once_a_second_behind_a_long_job(store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(wait)).await;
}

#[tokio::test]
async fn a_crowd_asks_seldom_behind_a_long_job() {
    let store = Fixture::new(Engine::MongoDb).store().await;
    processes::a_crowd_asks_seldom_behind_a_long_job(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handoffs_within_a_process_have_a_bound() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let store = Arc::new(Fixture::new(engine).store().await);
        processes::handoffs_within_a_process_have_a_bound(store).await;
    }
}

#[tokio::test]
async fn waits_that_end_give_their_places_back() {
    let end = async |engine| {
        let store = Arc::new(Fixture::new(engine).store().await);
        processes::waits_that_end_give_their_places_back(store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(end)).await;
}

#[tokio::test]
async fn a_reader_comes_back_before_a_writer() {
    let come_back = async |engine| {
        let store = Arc::new(Fixture::new(engine).store().await);
        processes::a_reader_comes_back_before_a_writer(store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(come_back)).await;
}

#[tokio::test]
async fn an_owner_comes_before_those_who_wait_for_it() {
    let enter = async |engine| {
        let store = Arc::new(Fixture::new(engine).store().await);
        processes::an_owner_comes_before_those_who_wait_for_it(store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(enter)).await;
}

/// Nothing of this and of the next test depends on the stream of a replica set. On the emulated server each request beside
/// a hundred places takes so long that the places may end before enough was seen.
#[tokio::test]
async fn a_process_without_a_place_is_reported_and_woken_by_an_eviction() {
    let store = Arc::new(Fixture::new(Engine::MongoDb).store().await);
    processes::a_process_without_a_place_is_reported_and_woken_by_an_eviction(store).await;
}

#[tokio::test]
async fn an_owner_without_a_place_asks_more_often_than_others() {
    let store = Arc::new(Fixture::new(Engine::MongoDb).store().await);
    processes::an_owner_without_a_place_asks_more_often_than_others(store).await;
}

#[tokio::test]
async fn late_conversions_undo_no_later_ones() {
    let converts = async |(engine, is_classic)| {
        let store = Fixture::new(engine).store().await;
        let store = if is_classic {
            store.without_pipelines()
        } else {
            store
        };
        late_conversions::late_conversions_undo_no_later_ones(Arc::new(store)).await;
    };
    let stores = [
        (Engine::MongoDb, false),
        (Engine::MongoDb, true),
        (Engine::MongoDbReplicaSet, false),
    ];
    join_all(stores.map(converts)).await;
}

#[tokio::test]
async fn of_processes_that_race_for_a_key_one_wins() {
    processes::race_of_processes(&place(Engine::MongoDb)).await;
}

#[tokio::test]
async fn a_paused_process_learns_at_once_that_it_lost() {
    let pause = async |engine| {
        let fixture = Fixture::new(engine);
        let store = Arc::new(fixture.store().await);
        processes::pause_past_the_ttl(&place_of(&fixture), store).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(pause)).await;
}

#[tokio::test]
async fn two_processes_with_clocks_of_their_own_keep_to_one_limit() {
    let calls = async |(engine, off)| {
        limits::calls_of_two_processes(&place(engine), off).await;
    };
    join_all([(Engine::MongoDb, 5), (Engine::MongoDbReplicaSet, -5)].map(calls)).await;
}

#[tokio::test]
async fn a_process_that_was_killed_costs_one_permit_at_the_most() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let store = Arc::new(fixture.store().await);
        limits::a_crash_costs_one_permit(&place_of(&fixture), store).await;
    }
}

#[tokio::test]
async fn stale_writes_are_fenced_off() {
    let rounds = async |engine| {
        let fixture = Fixture::new(engine);
        let store = Arc::new(fixture.store().await);
        let client = Client::with_uri_str(&fixture.uri).await.unwrap();
        let documents = Documents::of(&client, &fixture.name);
        fencing::pauses_and_takeovers(&place_of(&fixture), store, &documents).await;
    };
    join_all([Engine::MongoDb, Engine::MongoDbReplicaSet].map(rounds)).await;
}
