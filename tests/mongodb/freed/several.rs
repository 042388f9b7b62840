//! Events for a key with several holders.

use leasehold::{
    Key, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, ReleaseRequest,
        RenewAnswer, RenewRequest,
    },
};

use super::{LONG, free, next, told};

fn ask(lease: LeaseId) -> AcquireRequest {
    AcquireRequest::exclusive(Key::new("key").unwrap(), lease, "me".into(), LONG)
}

async fn acquire(store: &MongoStore, request: AcquireRequest) {
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
}

async fn convert(store: &MongoStore, request: ConvertRequest) {
    let answer = store.convert(&request).await.unwrap();
    assert!(matches!(answer, ConvertAnswer::Converted(_)), "{answer:?}");
}

/// Any of several holders leaves: the first, so that the others move up, one in the middle, or the last.
#[tokio::test]
async fn a_release_by_one_of_several_is_told() {
    let (_, mut freed, fixture) = told().await;
    let store = fixture.store().await;
    let modes = [
        |request: AcquireRequest| request.shared(),
        |request: AcquireRequest| request.permits(2, 9).unwrap().note("$note"),
        |request: AcquireRequest| request.reentrant(),
    ];
    for mode in modes {
        for leaver in 0..3 {
            let leases = [(); 3].map(|()| LeaseId::random());
            for lease in leases {
                acquire(&store, mode(ask(lease))).await;
            }
            let leave = ReleaseRequest::new(Key::new("key").unwrap(), leases[leaver]);
            store.release(&leave).await.unwrap();
            assert_eq!(next(&mut freed).await, ["key"], "number {leaver} left");
            store.evict(&leave.key).await.unwrap();
            assert_eq!(next(&mut freed).await, ["key"]);
        }
    }
}

/// If many holders stand behind the one that leaves, the server may log the list or the document as a whole.
#[tokio::test]
async fn a_release_by_one_of_many_is_told() {
    let (_, mut freed, fixture) = told().await;
    let store = fixture.store().await;
    let leases: Vec<_> = (0..200).map(|_| LeaseId::random()).collect();
    for (number, lease) in leases.iter().enumerate() {
        let note = "n".repeat(number % 7);
        let request = ask(*lease)
            .permits(number as i64 + 1, 1_000_000)
            .unwrap()
            .note(note);
        acquire(&store, request).await;
    }
    for leaver in [199, 100, 0] {
        let leave = ReleaseRequest::new(Key::new("key").unwrap(), leases[leaver]);
        store.release(&leave).await.unwrap();
        assert_eq!(next(&mut freed).await, ["key"], "number {leaver} left");
    }
}

#[tokio::test]
async fn a_downgrade_and_an_early_end_are_told() {
    let (_, mut freed, fixture) = told().await;
    let store = fixture.store().await;
    let (key, lease) = (Key::new("key").unwrap(), LeaseId::random());
    acquire(&store, ask(lease)).await;
    convert(&store, ConvertRequest::downgrade(key.clone(), lease)).await;
    assert_eq!(next(&mut freed).await, ["key"]);
    // The key may become free sooner than the waiters know.
    let release = ReleaseRequest::new(key, lease).min_hold(LONG / 2, LeaseId::random());
    store.release(&release).await.unwrap();
    assert_eq!(next(&mut freed).await, ["key"]);
}

#[tokio::test]
async fn what_comes_beside_other_holders_is_not_told() {
    let (leases, mut freed, fixture) = told().await;
    let store = fixture.store().await;
    let key = Key::new("key").unwrap();
    let [one, two, three] = [(); 3].map(|()| LeaseId::random());
    let renew = async |lease| {
        let renewal = RenewRequest::new(key.clone(), lease, LONG * 2);
        let answers = store.renew(&[renewal]).await.unwrap();
        assert!(matches!(answers[0], Ok(RenewAnswer::Renewed(_))));
    };

    // The key is new at first; then its leases were released; then they were evicted.
    for again in 0..3 {
        for lease in [one, two] {
            acquire(&store, ask(lease).shared()).await;
        }
        renew(one).await;
        let upgrade = ConvertRequest::upgrade(key.clone(), one);
        let answer = store.convert(&upgrade).await.unwrap();
        assert!(matches!(answer, ConvertAnswer::Held(_)), "{answer:?}");
        free(&leases, "sentinel").await;
        let mut told = next(&mut freed).await;
        // A grant on a document without holders is logged as a whole document. That looks like a free key.
        if again > 0 && told == ["key"] {
            told = next(&mut freed).await;
        }
        assert_eq!(told, ["sentinel"]);

        let leave = ReleaseRequest::new(key.clone(), two);
        store.release(&leave).await.unwrap();
        assert_eq!(next(&mut freed).await, ["key"]);
        convert(&store, upgrade).await;
        acquire(&store, ask(three).reentrant().note("again")).await;
        renew(three).await;
        free(&leases, "sentinel").await;
        assert_eq!(next(&mut freed).await, ["sentinel"]);

        match again {
            0 => {
                for lease in [one, three] {
                    let leave = ReleaseRequest::new(key.clone(), lease);
                    store.release(&leave).await.unwrap();
                    assert_eq!(next(&mut freed).await, ["key"]);
                }
            }
            _ => {
                store.evict(&key).await.unwrap();
                assert_eq!(next(&mut freed).await, ["key"]);
            }
        }
    }
}
