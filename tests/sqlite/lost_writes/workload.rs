//! The work of the process whose disk is recorded.

use std::{fs, path::Path, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::future::join_all;
use leasehold::{
    Key, SqliteStore, Store,
    jobs::Tick,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Grant, LeaseId, PermitAnswer,
        PermitId, PermitRequest, Quota, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    },
};

use super::log::{Event, Granted, Teller};

/// The keys that several leases compete for. The key of a job follows.
pub const KEYS: [&str; 5] = ["key 0", "key 1", "key 2", "key 3", "key 4"];
pub const JOB: &str = "job";
pub const LIMITER: &str = "limiter";
/// A ttl that is longer than the test, also if a record is tried again later.
const LONG: Duration = Duration::from_secs(86_400);
/// A ttl that is over at the next request.
const BRIEF: Duration = Duration::from_millis(1);
/// For how long the store remembers that a tick was done.
const KEPT: Duration = LONG;
/// How many steps pass until the file is closed, which empties the log.
const STEPS: u32 = 45;
const TIMES: u32 = 3;
/// The number of leases that are renewed together. With their notes they fill many pages.
const KEPT_ALIVE: usize = 40;
const NOTE: usize = 1_000;
/// The length of the log at which SQLite writes its pages to the file by itself.
const LOG: u64 = 1_000 * (4_096 + 24);

/// A quota whose permits take years to come back.
pub fn quota() -> Quota {
    let year = Duration::from_secs(365 * 86_400);
    let quota = Quota::fixed(1_000, year).unwrap();
    quota.smooth(1_000).unwrap()
}

pub fn ask(key: &str, lease: LeaseId) -> AcquireRequest {
    AcquireRequest::exclusive(Key::new(key).unwrap(), lease, Arc::from("somebody"), LONG)
}

/// Does what applications do, with two stores on one file, and leaves the file open at the end.
pub async fn work(path: &Path, record: &Path, seed: u64) {
    let mut application = Application {
        random: Rng::with_seed(seed),
        teller: Teller::new(record),
        stores: Vec::new(),
        held: Vec::new(),
        steps: 0,
    };
    for _ in 0..TIMES {
        application.open(path).await;
        for _ in 0..STEPS {
            application.step().await;
        }
    }
    application.open(path).await;
    let many = application.take_many().await;
    let log = path.with_extension("db-wal");
    while fs::metadata(&log).unwrap().len() < LOG {
        application.renew(&many).await;
        application.step().await;
    }
    // The log starts anew, so a loss of power finds the file open.
    for _ in 0..STEPS {
        application.step().await;
    }
    std::process::exit(0);
}

fn granted(key: &Key, lease: LeaseId, grant: &Grant) -> Granted {
    Granted {
        key: key.to_string(),
        lease,
        fence: grant.fence.get(),
        until: grant.expires_at.timestamp_millis(),
    }
}

struct Application {
    random: Rng,
    teller: Teller,
    stores: Vec<SqliteStore>,
    held: Vec<(Key, LeaseId)>,
    steps: u32,
}

impl Application {
    async fn open(&mut self, path: &Path) {
        self.stores.clear();
        for _ in 0..2 {
            self.stores.push(SqliteStore::open(path).await.unwrap());
        }
    }

    fn store(&mut self) -> SqliteStore {
        self.random.choice(&self.stores).unwrap().clone()
    }

    async fn step(&mut self) {
        self.steps += 1;
        let key = Key::new(*self.random.choice(&KEYS).unwrap()).unwrap();
        let ask = ask(key.as_str(), LeaseId::random());
        match self.random.u32(..100) {
            0..25 => self.take(ask).await,
            25..40 => self.take(ask.shared()).await,
            40..50 => {
                let mut ask = ask;
                ask.ttl = BRIEF;
                self.take(ask).await;
            }
            50..65 => {
                if let Some(held) = self.random.choice(&self.held).cloned() {
                    self.renew(&[held]).await;
                }
            }
            65..75 => self.release().await,
            75..80 => self.convert().await,
            80..85 => self.evict(key).await,
            85..92 => self.do_job().await,
            _ => self.take_permits().await,
        }
    }

    /// Records that the application asks for something that may end these leases.
    fn asks(&mut self, ends: &[LeaseId]) {
        self.teller.tell(&Event::Asks(ends.to_vec()));
    }

    /// Sends the request, and returns whether it is granted.
    async fn acquire(&mut self, request: &AcquireRequest) -> bool {
        self.asks(&[]);
        let answer = self.store().acquire(request).await.unwrap();
        let AcquireAnswer::Granted(grant) = answer else {
            self.teller.tell(&Event::Refused);
            return false;
        };
        let granted = granted(&request.key, request.lease, &grant);
        self.teller.tell(&Event::Granted(vec![granted]));
        true
    }

    async fn take(&mut self, request: AcquireRequest) {
        if self.acquire(&request).await {
            self.held.push((request.key, request.lease));
        }
    }

    /// Each renewal has a longer ttl than those before.
    async fn renew(&mut self, leases: &[(Key, LeaseId)]) {
        let ttl = LONG + Duration::from_secs(self.steps.into());
        let request = |(key, lease): &(Key, LeaseId)| RenewRequest::new(key.clone(), *lease, ttl);
        let requests: Vec<_> = leases.iter().map(request).collect();
        self.asks(&[]);
        let answers = self.store().renew(&requests).await.unwrap();
        let mut renewed = Vec::new();
        for ((key, lease), answer) in leases.iter().zip(answers) {
            if let RenewAnswer::Renewed(grant) = answer.unwrap() {
                renewed.push(granted(key, *lease, &grant));
            }
        }
        self.teller.tell(&match renewed.is_empty() {
            true => Event::Refused,
            false => Event::Granted(renewed),
        });
    }

    /// Takes many leases at the same time, so that they share a transaction.
    async fn take_many(&mut self) -> Vec<(Key, LeaseId)> {
        let request = |number| {
            let request = ask(&format!("kept {number:02}"), LeaseId::random());
            request.note("x".repeat(NOTE))
        };
        let requests: Vec<_> = (0..KEPT_ALIVE).map(request).collect();
        self.asks(&[]);
        let store = self.store();
        let answers = join_all(requests.iter().map(|it| store.acquire(it))).await;
        let grants = requests.iter().zip(answers).map(|(it, answer)| {
            let AcquireAnswer::Granted(grant) = answer.unwrap() else {
                panic!("{} is held", it.key);
            };
            granted(&it.key, it.lease, &grant)
        });
        self.teller.tell(&Event::Granted(grants.collect()));
        let held = requests.into_iter().map(|it| (it.key, it.lease));
        held.collect()
    }

    fn any_held(&mut self) -> Option<(Key, LeaseId)> {
        let any = self.random.choice(0..self.held.len())?;
        Some(self.held.swap_remove(any))
    }

    async fn release(&mut self) {
        if let Some((key, lease)) = self.any_held() {
            self.asks(&[lease]);
            let request = ReleaseRequest::new(key, lease);
            let answer = self.store().release(&request).await.unwrap();
            self.teller.tell(&match answer {
                ReleaseAnswer::Released => Event::Released(lease),
                ReleaseAnswer::NotHeld => Event::Refused,
            });
        }
    }

    async fn convert(&mut self) {
        let Some((key, lease)) = self.random.choice(&self.held).cloned() else {
            return;
        };
        self.asks(&[]);
        let request = match self.random.bool() {
            true => ConvertRequest::upgrade(key.clone(), lease),
            false => ConvertRequest::downgrade(key.clone(), lease),
        };
        let answer = self.store().convert(&request).await.unwrap();
        let event = match answer {
            ConvertAnswer::Converted(grant) => Event::Granted(vec![granted(&key, lease, &grant)]),
            _ => Event::Refused,
        };
        self.teller.tell(&event);
    }

    async fn evict(&mut self, key: Key) {
        let of_key = self.held.extract_if(.., |(of, _)| *of == key);
        let ends: Vec<_> = of_key.map(|(_, lease)| lease).collect();
        self.asks(&ends);
        let eviction = self.store().evict(&key).await.unwrap();
        self.teller.tell(&match eviction {
            Some(eviction) => Event::Evicted {
                key: key.to_string(),
                ends,
                fence: eviction.fence.get(),
            },
            None => Event::Refused,
        });
    }

    async fn do_job(&mut self) {
        let tick = Tick::counter(self.steps.into());
        let request = ask(JOB, LeaseId::random()).tick(tick);
        assert!(self.acquire(&request).await);
        let (key, lease) = (request.key, request.lease);
        self.asks(&[lease]);
        let release = ReleaseRequest::new(key, lease).done(tick, KEPT);
        let answer = self.store().release(&release).await.unwrap();
        assert_eq!(answer, ReleaseAnswer::Released, "{tick:?}");
        let tick = tick.number();
        self.teller.tell(&Event::Done { lease, tick });
    }

    async fn take_permits(&mut self) {
        let key = Key::new(LIMITER).unwrap();
        self.asks(&[]);
        let request = PermitRequest::new(key, PermitId::random(), quota(), 1).up_to(3);
        let answer = self.store().permit(&request).await.unwrap();
        self.teller.tell(&match answer {
            PermitAnswer::Granted { permits, .. } => Event::Permitted(permits),
            PermitAnswer::Full { .. } => Event::Refused,
        });
    }
}
