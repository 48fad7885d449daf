//! C23: the clocks of a process and of Redis step, by a library that is loaded before theirs and
//! adds an offset to the time of day. Monotonic time goes on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;

use crate::support::admin::call;
use crate::support::app::sale_body;
use crate::support::crowd::{History, send};
use crate::support::gate::{
    GateFixture, PATIENT, assert_holds_at_rest, metric, purchases, retry_until_answered,
};
use crate::support::pipeline::PipelineFixture;
use crate::support::process::Server;
use crate::support::servers::wrapped_redis::WrappedRedis;
use crate::support::wait::until;
use crate::support::webhooks::SETTINGS;

/// Overrides what reads the time of day. The calls go to the kernel, so that the library needs
/// nothing of the one that it overrides.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *offset_s;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    offset_s = mmap(0, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += *offset_s;
    return failed;
}
int gettimeofday(struct timeval *day, void *zone) {
    (void)zone;
    struct timespec time;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    day->tv_sec = time.tv_sec;
    day->tv_usec = time.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *out) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (out) *out = time.tv_sec;
    return time.tv_sec;
}
"#;

/// Seconds by which a clock steps, and back to the right time.
const STEPS_S: [i64; 5] = [60, -60, -600, 3_600, 0];

/// A clock that tests set, for the processes that run with it.
struct SteppingClock {
    folder: TempDir,
    offset: File,
}

impl SteppingClock {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("shim.c");
        std::fs::write(&source, SHIM).unwrap();
        let library = folder.path().join("shim.so");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        let output = compile.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let offset = File::create_new(folder.path().join("offset")).unwrap();
        let clock = Self { folder, offset };
        clock.step(0);
        clock
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn step(&self, seconds: i64) {
        self.offset.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// Makes the command run with this clock.
    fn with(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", self.file("shim.so")).env("CLOCK_OFFSET", self.file("offset"));
        command
    }

    fn redis(&self) -> WrappedRedis {
        WrappedRedis::start(|_| self.with(Command::new("env")), &[])
    }
}

/// Opens a sale that lasts longer than every step.
async fn open(server: &Server, sale: &str, window_s: u32) {
    let mut body = sale_body(sale, json!({"kind": "one_per_buyer"}), 2_000, 2);
    body["skus"][0]["payment_window_s"] = json!(window_s);
    body["starts_at"] = json!("2001-01-01T00:00:00Z");
    body["ends_at"] = json!("2099-01-01T00:00:00Z");
    call(server.internal, "/sales", body).await;
    call(server.internal, &format!("/sales/{sale}/open"), json!({})).await;
}

async fn sell(server: &Server, history: &mut History, buyers: std::ops::Range<u64>) {
    history.absorb(retry_until_answered(server.public, purchases(buyers).into(), 8).await);
}

async fn clock_not_trusted(server: &Server) -> u64 {
    metric(server.internal, "floodgate_clock_not_trusted", "").await
}

#[test]
fn a_process_whose_clock_steps_ends_no_order_and_says_so() {
    let clock = SteppingClock::new();
    let fixture = GateFixture::new();
    let settings = [&SETTINGS[..], &PATIENT].concat();
    let server = Server::from_command(clock.with(fixture.command(&settings)));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        open(&server, "sale", 900).await;
        let mut history = History::default();
        sell(&server, &mut history, 1..50).await;
        let mut first = 50;
        for step_s in STEPS_S {
            clock.step(step_s);
            let expected = u64::from(step_s != 0);
            until("the metric of the clock", async || {
                (clock_not_trusted(&server).await == expected).then_some(())
            })
            .await;
            // The sale goes on, and no order ends: not even those of an hour ago.
            sell(&server, &mut history, first..first + 20).await;
            first += 20;
            let timed_out = metric(server.internal, "floodgate_orders_timed_out_total", "").await;
            assert_eq!(timed_out, 0, "after a step of {step_s} s");
        }
        fixture.check(server.internal, &history, 2_000).await;
        // The clock is right again: orders end at their deadlines.
        open(&server, "short", 1).await;
        let unpaid = purchases(1..2).into();
        let sent = send(server.public, "short", unpaid, vec![0].into(), 1).await;
        assert!(sent.purchases[0].is_promise());
        until("the time-out of the unpaid order", async || {
            (metric(server.internal, "floodgate_orders_timed_out_total", "").await == 1)
                .then_some(())
        })
        .await;
        assert_holds_at_rest(server.internal).await;
    });
}

/// Gates and consumers give orders their times.
#[test]
fn a_process_of_each_role_says_that_its_clock_stepped() {
    let clock = SteppingClock::new();
    let fixture = PipelineFixture::new("list").patient();
    let servers = ["maintenance", "api", "relay", "consumer"]
        .map(|role| (role, Server::from_command(clock.with(fixture.command(role, &[])))));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for step_s in [60, 0] {
            clock.step(step_s);
            let expected = u64::from(step_s != 0);
            for (role, server) in &servers {
                until(&format!("the metric of role {role}"), async || {
                    (clock_not_trusted(server).await == expected).then_some(())
                })
                .await;
            }
        }
    });
}

/// Leases expire early or late with the clock of Redis; the tokens of the ledger decide.
#[test]
fn a_redis_whose_clock_steps_sells_nothing_twice() {
    let clock = SteppingClock::new();
    let redis = clock.redis();
    let fixture = GateFixture::new();
    let url = redis.url();
    let settings = [&SETTINGS[..], &PATIENT, &[("redis.url", url.as_str())]].concat();
    let servers = [fixture.server(&settings), fixture.server(&settings)];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        open(&servers[0], "sale", 900).await;
        open(&servers[0], "short", 1).await;
        let (mut history, mut first) = (History::default(), 1);
        for step_s in STEPS_S {
            clock.step(step_s);
            assert_eq!(redis.ahead_s(), step_s, "the clock of Redis");
            let short: Arc<Vec<_>> = purchases(first..first + 40).into();
            let once: Arc<Vec<usize>> = Arc::new((0..40).collect());
            send(servers[0].public, "short", short, once, 8).await;
            for server in &servers {
                // The second server repeats the purchases at the first.
                sell(server, &mut history, first..first + 40).await;
            }
            first += 40;
        }
        assert_eq!(fixture.mariadb.number("SELECT COUNT(*) FROM orders WHERE sku_no = 1"), 200);
        until("the end of every order that is due", async || {
            let due = "SELECT COUNT(*) FROM orders WHERE sku_no = 2 AND state <> 2";
            (fixture.mariadb.number(due) == 0).then_some(())
        })
        .await;
        assert_holds_at_rest(servers[0].internal).await;
    });
}
