//! Measures how many reservations a second one redis-server decides. Prints, asserts nothing.

use floodgate::domain::Reservation;
use floodgate::runtime::clock::now_monotonic;
use redis::Value;

use super::harness::{Fixture, ScriptClient, sku};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

const BUYERS: u32 = 100_000;

#[test]
#[ignore = "a measurement: run it alone, in release"]
fn how_fast_is_a_batch() {
    for size in [1, 64, 256] {
        let redis = Redis::start();
        let mut client = ScriptClient::new(&redis);
        let buckets = 8;
        let mut sku = sku(1, ONE, buckets * BUYERS);
        sku.buckets = u16::try_from(buckets).unwrap();
        let fixture = Fixture::open(&redis, &mut client, sku, BUYERS);
        let mut random = fastrand::Rng::with_seed(1);
        let reservations: Vec<Reservation> = (0..BUYERS)
            .map(|_| {
                fixture.reservation(random.u64(1 << 60..1 << 63), random.u64(1 << 60..1 << 63), 1)
            })
            .collect();
        let mut report = format!("batches of {size}:");
        let mut measure = |name: &str, run: &mut dyn FnMut(&[Reservation])| {
            let (start, cpu) = (now_monotonic(), used_cpu(&redis));
            reservations.chunks(size).for_each(run);
            let (time, cpu) = (start.elapsed().as_secs_f64(), used_cpu(&redis) - cpu);
            let count = f64::from(BUYERS);
            report +=
                &format!(" {name} {:.0}/s ({:.2} us of redis)", count / time, cpu * 1e6 / count);
        };
        measure("new", &mut |batch| drop(fixture.reserve(&mut client, 0, batch)));
        measure("repeated", &mut |batch| drop(fixture.reserve(&mut client, 0, batch)));
        measure("settled", &mut |batch| {
            let orders: Vec<_> =
                batch.iter().map(|reservation| fixture.order(reservation)).collect();
            fixture.settle(&mut client, 0, &orders);
        });
        let sold_out: Vec<_> = reservations
            .iter()
            .map(|reservation| {
                fixture.reservation(reservation.buyer.get(), 1 + reservation.request.get() / 2, 1)
            })
            .collect();
        let mut short_batches = sold_out.chunks(size);
        measure("short", &mut |_| {
            drop(fixture.reserve(&mut client, 0, short_batches.next().unwrap()));
        });
        println!("{report}");
        let info = client.cmd(&["INFO", "commandstats"]);
        if let (64, Value::BulkString(text)) = (size, info) {
            println!("{}", String::from_utf8_lossy(&text));
        }
    }
}

fn used_cpu(redis: &Redis) -> f64 {
    ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"]
        .iter()
        .map(|name| redis.info(name).parse::<f64>().unwrap())
        .sum()
}
