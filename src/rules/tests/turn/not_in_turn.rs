//! The requests that ignore the queue.

use super::*;

#[test]
fn a_barging_request_overtakes_and_keeps_the_places() {
    let [one, two] = processes();
    let record = free_with(&[wait(one), wait(two)]);
    let barging = ask(LeaseId::random()).turn(Turn::Barging);
    let record = passes(&record, &barging, 1_001);
    assert_eq!(waiters(&record), [one, two]);
    let (held, written) = refused(&record, &ask(LeaseId::random()).turn(Turn::Barging), 1_002);
    assert_eq!((held.binds_for(), written), (Duration::ZERO, None));
}

#[test]
fn an_owner_that_enters_again_comes_before_all() {
    let [writer, own] = processes();
    let record = held_with(&[wait(writer)]);
    let again = |request: AcquireRequest| AcquireRequest {
        owner: "me".into(),
        ..request.reentrant()
    };
    let entered = passes(&record, &again(ask(LeaseId::random())), 2);
    assert_eq!(waiters(&entered), [writer]);
    let entered = passes(&entered, &again(wait(own)), 3);
    assert_eq!(waiters(&entered), [writer]);
    let record = read_with(&[wait(writer)]);
    passes(&record, &again(ask(LeaseId::random()).shared()), 2);
    // It is refused if it does not ask to enter again, or if its lease has expired.
    refused(&record, &ask(LeaseId::random()).shared(), 2);
    refused(&record, &again(wait(own)), 10_000);
}

/// A program with several processes of one owner: each of them could hold the key beside the others.
#[test]
fn an_owner_does_not_queue_behind_itself() {
    let [own, other, late] = processes();
    let ours = |request: AcquireRequest| AcquireRequest {
        owner: "us".into(),
        ..request.reentrant()
    };
    let record = free_with(&[ours(wait(own))]);
    let entered = passes(&record, &ours(wait(late)), 1_001);
    assert_eq!(waiters(&entered), [own]);
    passes(&entered, &ours(wait(own)), 1_002);
    // It does queue behind others.
    let record = free_with(&[ours(wait(own)), wait(other)]);
    let (held, _) = refused(&record, &ours(wait(late)), 1_001);
    assert_eq!(held.ahead(), 2);
}

/// A place has the owner and the mode of the task that asks.
#[test]
fn a_place_has_the_owner_of_the_task_that_asks() {
    let [waiter, other] = processes();
    let by = |owner: &str, waiter| AcquireRequest {
        owner: owner.into(),
        ..wait(waiter)
    };
    let record = held_with(&[by("one", waiter)]);
    let (_, written) = refused(&record, &by("two", waiter), 2);
    let record = written.expect("the owner is another one");
    assert_eq!(&*record.waiters[0].owner, "two");
    let record = freed(&record, 1_000);
    passes(&record, &by("two", other).reentrant(), 1_001);
    refused(&record, &by("one", other).reentrant(), 1_001);
}

#[test]
fn an_upgrade_ignores_the_queue() {
    let [writer] = processes();
    let record = read_with(&[wait(writer)]);
    let upgrade = ConvertRequest::upgrade(record.key.clone(), holders(&record)[0]);
    let decision = convert(Some(&record), &upgrade, at(2));
    assert!(matches!(decision.answer, ConvertAnswer::Converted(_)));
    let upgraded = put(decision.write);
    assert_eq!(upgraded.waiters, record.waiters);
    // After a downgrade, the readers before the next writer are let in.
    let downgrade = ConvertRequest::downgrade(record.key.clone(), holders(&record)[0]);
    let downgraded = put(convert(Some(&upgraded), &downgrade, at(3)).write);
    assert_eq!(downgraded.waiters, record.waiters);
    refused(&downgraded, &ask(LeaseId::random()).shared(), 4);
}
