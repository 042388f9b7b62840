//! Several operating-system processes on one engine.

use futures::future::join_all;
use leasehold_tests::{
    late_conversions,
    processes::{self, Place, fencing, limits},
};

use super::{BOTH, Engine, Fixture, fencing::pauses::Beside};

/// Not a test of its own: this is the work of a process that a test has started. Without a task it
/// does nothing.
#[tokio::test]
async fn the_work_of_a_process() {
    if let Some((task, kind, url, alias)) = processes::task() {
        let engine = match kind.as_str() {
            "opensearch" => Engine::OpenSearch,
            _ => Engine::Elasticsearch,
        };
        let fixture = Fixture { engine, url, alias };
        match task.as_str() {
            "stale" => fencing::stale(fixture.store(), &Beside::of(&fixture)).await,
            task => processes::work(task, fixture.store()).await,
        }
    }
}

async fn place(engine: Engine) -> Place {
    place_of(&Fixture::prepared(engine).await)
}

fn place_of(fixture: &Fixture) -> Place {
    Place {
        kind: match fixture.engine {
            Engine::OpenSearch => "opensearch",
            _ => "elasticsearch",
        },
        address: fixture.url.clone(),
        name: fixture.alias.clone(),
    }
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed() {
    let take_over = async |engine| {
        processes::takeover_from_a_killed_process(&place(engine).await).await;
    };
    join_all(BOTH.map(take_over)).await;
}

#[tokio::test]
async fn processes_that_are_killed_while_they_wait_block_nobody() {
    let kill = async |engine| {
        let fixture = Fixture::prepared(engine).await;
        processes::waiting_processes_are_killed(&place_of(&fixture), fixture.store()).await;
    };
    join_all(BOTH.map(kill)).await;
}

#[tokio::test]
async fn processes_that_stand_still_while_they_wait_block_nobody() {
    let stop = async |engine| {
        let fixture = Fixture::prepared(engine).await;
        processes::waiting_processes_are_stopped(&place_of(&fixture), fixture.store()).await;
    };
    join_all(BOTH.map(stop)).await;
}

#[tokio::test]
async fn the_tasks_of_a_process_have_one_place() {
    let wait = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::the_tasks_of_a_process_have_one_place(store).await;
    };
    join_all(BOTH.map(wait)).await;
}

#[tokio::test]
async fn the_first_asks_once_a_second_behind_a_long_job() {
    let wait = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::the_first_asks_once_a_second_behind_a_long_job(store).await;
    };
    join_all(BOTH.map(wait)).await;
}

#[tokio::test]
async fn a_crowd_asks_seldom_behind_a_long_job() {
    let wait = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::a_crowd_asks_seldom_behind_a_long_job(store).await;
    };
    join_all(BOTH.map(wait)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handoffs_within_a_process_have_a_bound() {
    for engine in BOTH {
        let store = Fixture::prepared(engine).await.store();
        processes::handoffs_within_a_process_have_a_bound(store).await;
    }
}

#[tokio::test]
async fn waits_that_end_give_their_places_back() {
    let end = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::waits_that_end_give_their_places_back(store).await;
    };
    join_all(BOTH.map(end)).await;
}

#[tokio::test]
async fn a_reader_comes_back_before_a_writer() {
    let come_back = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::a_reader_comes_back_before_a_writer(store).await;
    };
    join_all(BOTH.map(come_back)).await;
}

#[tokio::test]
async fn an_owner_comes_before_those_who_wait_for_it() {
    let enter = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::an_owner_comes_before_those_who_wait_for_it(store).await;
    };
    join_all(BOTH.map(enter)).await;
}

#[tokio::test]
async fn a_process_without_a_place_is_reported_and_woken_by_an_eviction() {
    // The metrics of this thread count one process at a time.
    for engine in BOTH {
        let store = Fixture::prepared(engine).await.store();
        processes::a_process_without_a_place_is_reported_and_woken_by_an_eviction(store).await;
    }
}

#[tokio::test]
async fn an_owner_without_a_place_asks_more_often_than_others() {
    let asks = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        processes::an_owner_without_a_place_asks_more_often_than_others(store).await;
    };
    join_all(BOTH.map(asks)).await;
}

#[tokio::test]
async fn late_conversions_undo_no_later_ones() {
    let converts = async |engine| {
        let store = Fixture::prepared(engine).await.store();
        late_conversions::late_conversions_undo_no_later_ones(store).await;
    };
    join_all(BOTH.map(converts)).await;
}

#[tokio::test]
async fn of_processes_that_race_for_a_key_one_wins() {
    for engine in BOTH {
        processes::race_of_processes(&place(engine).await).await;
    }
}

#[tokio::test]
async fn a_paused_process_learns_at_once_that_it_lost() {
    let pause = async |engine| {
        let fixture = Fixture::prepared(engine).await;
        processes::pause_past_the_ttl(&place_of(&fixture), fixture.store()).await;
    };
    join_all(BOTH.map(pause)).await;
}

#[tokio::test]
async fn two_processes_with_clocks_of_their_own_keep_to_one_limit() {
    let calls = async |(engine, off)| {
        limits::calls_of_two_processes(&place(engine).await, off).await;
    };
    join_all([(Engine::Elasticsearch, 5), (Engine::OpenSearch, -5)].map(calls)).await;
}

#[tokio::test]
async fn a_process_that_was_killed_costs_one_permit_at_the_most() {
    let crash = async |engine| {
        let fixture = Fixture::prepared(engine).await;
        limits::a_crash_costs_one_permit(&place_of(&fixture), fixture.store()).await;
    };
    join_all(BOTH.map(crash)).await;
}

#[tokio::test]
async fn stale_writes_are_fenced_off() {
    let rounds = async |engine| {
        let fixture = Fixture::prepared(engine).await;
        let documents = Beside::of(&fixture);
        fencing::pauses_and_takeovers(&place_of(&fixture), fixture.store(), &documents).await;
    };
    join_all(BOTH.map(rounds)).await;
}
