//! The open event streams of this process, and how many there may be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::POLL_EVERY_MS;
use crate::domain::{BucketKey, BuyerId, RequestId, RequestRecord};
use crate::observe::metrics::{Metrics, ReasonLabel};

/// One in this many connections may be an event stream.
const SHARE: usize = 5;

/// Streams of one buyer at once.
const OF_BUYER_MAX: u32 = 3;

/// News that a stream may leave unread before it misses some.
const UNREAD_MAX: usize = 4;

/// Longest duration of one stream; the client comes again afterwards.
const STREAM_MAX: Duration = Duration::from_mins(5);

/// Looks from one heartbeat of a stream to the next: 15 seconds, below the idle time-out of common
/// proxies. Each poll sends those of its share of the streams.
const BEAT_EVERY: u64 = 15_000 / POLL_EVERY_MS;

/// Looks from one lookup of a request without a hint to the next: 5 seconds while hints come, else
/// one second. Each poll makes those of its share of the streams.
const LOOK_UP_EVERY_HINTED: u64 = 5_000 / POLL_EVERY_MS;
const LOOK_UP_EVERY: u64 = 1_000 / POLL_EVERY_MS;

/// What a stream receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamNews {
    /// The request has ended; nothing follows.
    Ended(RequestRecord),
    /// The request is still queued.
    Beat,
}

/// The event streams of this process.
#[derive(Debug)]
pub struct StreamRegistry {
    streams: Mutex<Streams>,
    max: usize,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Streams {
    by_request: HashMap<RequestId, Stream>,
    of_buyer: HashMap<BuyerId, u32>,
    /// Number of the last stream.
    last_no: u64,
    num_polls: u64,
    /// Followed requests with results, as far as hints say.
    hinted: HashSet<RequestId>,
    is_listening: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct Stream {
    no: u64,
    /// The buyer's home bucket.
    bucket: BucketKey,
    buyer: BuyerId,
    news: mpsc::Sender<StreamNews>,
    ends: Instant,
}

/// A request that a stream follows, until drop.
#[derive(Debug)]
pub struct FollowedRequest {
    registry: Arc<StreamRegistry>,
    request: RequestId,
    no: u64,
    news: mpsc::Receiver<StreamNews>,
}

impl StreamRegistry {
    /// For a listener that accepts `connections_max` connections.
    pub fn new(connections_max: usize, metrics: Arc<Metrics>) -> Self {
        Self { streams: Mutex::default(), max: connections_max.div_ceil(SHARE), metrics }
    }

    /// Follows a request of the buyer's home bucket. `None`: this process, or this buyer, has as
    /// many streams as it may have, the request has one already, or the process is stopping.
    pub fn follow(
        self: &Arc<Self>,
        (bucket, request): (BucketKey, RequestId),
        buyer: BuyerId,
        now: Instant,
    ) -> Option<FollowedRequest> {
        let mut streams = self.streams.lock();
        let num_own = streams.of_buyer.get(&buyer).copied().unwrap_or_default();
        let is_full = streams.is_closed || streams.by_request.len() >= self.max;
        let has_most = num_own >= OF_BUYER_MAX || streams.by_request.contains_key(&request);
        let refused_by = is_full.then_some("process").or(has_most.then_some("buyer"));
        if let Some(reason) = refused_by {
            self.metrics.event_streams_refused.get_or_create(&ReasonLabel { reason }).inc();
            return None;
        }
        let (sender, news) = mpsc::channel(UNREAD_MAX);
        streams.last_no += 1;
        let no = streams.last_no;
        let stream = Stream { no, bucket, buyer, news: sender, ends: now + STREAM_MAX };
        streams.by_request.insert(request, stream);
        *streams.of_buyer.entry(buyer).or_default() += 1;
        self.count(&streams);
        Some(FollowedRequest { registry: Arc::clone(self), request, no, news })
    }

    /// Ends streams that have lasted long enough, sends the heartbeats that are due, and returns
    /// the requests to look up.
    pub fn begin_poll(&self, now: Instant) -> BTreeMap<BucketKey, Vec<(RequestId, BuyerId)>> {
        let mut streams = self.streams.lock();
        streams.num_polls += 1;
        let num_polls = streams.num_polls;
        let is_due = |every: u64, no: u64| no % every == num_polls % every;
        let hinted = std::mem::take(&mut streams.hinted);
        let every = if streams.is_listening { LOOK_UP_EVERY_HINTED } else { LOOK_UP_EVERY };
        let over = streams.by_request.iter().filter(|(_, stream)| stream.ends <= now);
        let over: Vec<RequestId> = over.map(|(request, _)| *request).collect();
        for request in over {
            streams.remove(request);
        }
        let mut to_look_up: BTreeMap<BucketKey, Vec<_>> = BTreeMap::new();
        for (request, stream) in &streams.by_request {
            if is_due(every, stream.no) || hinted.contains(request) {
                to_look_up.entry(stream.bucket).or_default().push((*request, stream.buyer));
            }
            if is_due(BEAT_EVERY, stream.no) {
                // A stream that does not read is cut with its connection.
                let _unread = stream.news.try_send(StreamNews::Beat);
            }
        }
        self.count(&streams);
        to_look_up
    }

    /// Hints come from now on, until the result is dropped.
    pub fn listen(self: &Arc<Self>) -> Listening {
        self.streams.lock().is_listening = true;
        Listening(Arc::clone(self))
    }

    /// Sends the stream of a request how that ended.
    pub fn end(&self, request: RequestId, ended: RequestRecord) {
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.by_request.get(&request) {
            let _unread = stream.news.try_send(StreamNews::Ended(ended));
        }
        streams.remove(request);
        self.count(&streams);
    }

    /// Ends the stream of a request.
    pub fn remove(&self, request: RequestId) {
        let mut streams = self.streams.lock();
        streams.remove(request);
        self.count(&streams);
    }

    /// Ends every stream, and admits no more: the process is stopping.
    pub fn close(&self) {
        let mut streams = self.streams.lock();
        *streams = Streams { is_closed: true, ..Streams::default() };
        self.count(&streams);
    }

    fn count(&self, streams: &Streams) {
        let open = i64::try_from(streams.by_request.len()).unwrap_or(i64::MAX);
        self.metrics.event_streams.set(open);
    }
}

impl Streams {
    fn remove(&mut self, request: RequestId) {
        let Some(Stream { buyer, .. }) = self.by_request.remove(&request) else { return };
        if let Some(num_own) = self.of_buyer.get_mut(&buyer) {
            *num_own -= 1;
            if *num_own == 0 {
                self.of_buyer.remove(&buyer);
            }
        }
    }
}

impl FollowedRequest {
    /// The next news; `None`: the stream ends before the request has ended.
    pub async fn next(&mut self) -> Option<StreamNews> {
        self.news.recv().await
    }
}

/// Hints of results, until drop.
#[derive(Debug)]
pub struct Listening(Arc<StreamRegistry>);

impl Listening {
    /// These requests have results: those that are followed are read with the next poll.
    pub fn hint(&self, requests: &[RequestId]) {
        let mut streams = self.0.streams.lock();
        let Streams { by_request, hinted, .. } = &mut *streams;
        hinted.extend(requests.iter().filter(|request| by_request.contains_key(*request)));
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.streams.lock().is_listening = false;
    }
}

impl Drop for FollowedRequest {
    fn drop(&mut self) {
        let mut streams = self.registry.streams.lock();
        if streams.by_request.get(&self.request).is_some_and(|stream| stream.no == self.no) {
            streams.remove(self.request);
            self.registry.count(&streams);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::domain::{BucketNo, Refusal, SkuNo, samples};
    use crate::runtime::clock::now_monotonic;

    const BUCKET: BucketKey = BucketKey { sku: SkuNo(1), bucket: BucketNo(0) };

    fn registry(connections_max: usize) -> Arc<StreamRegistry> {
        Arc::new(StreamRegistry::new(connections_max, Arc::default()))
    }

    fn follow(registry: &Arc<StreamRegistry>, request: u64, buyer: u64) -> Option<FollowedRequest> {
        let request = (BUCKET, RequestId::new(request).unwrap());
        registry.follow(request, BuyerId::new(buyer).unwrap(), now_monotonic())
    }

    /// `None`: nothing has happened; `Some(None)`: the stream has ended.
    #[expect(clippy::option_option, reason = "the answer of a stream that is asked once")]
    fn news(stream: &mut FollowedRequest) -> Option<Option<StreamNews>> {
        stream.next().now_or_never()
    }

    #[test]
    fn a_buyer_has_three_streams_and_a_request_one() {
        let registry = registry(1_000);
        let mut first = follow(&registry, 1, 7).unwrap();
        let others = [2, 3].map(|request| follow(&registry, request, 7).unwrap());
        assert!(follow(&registry, 4, 7).is_none(), "a fourth request of the buyer");
        assert!(follow(&registry, 4, 8).is_some(), "another buyer");
        drop(others);
        assert!(follow(&registry, 1, 7).is_none(), "a second stream of the request");
        assert_eq!(news(&mut first), None, "and the first one goes on");
        registry.remove(RequestId::new(1).unwrap());
        let _again = follow(&registry, 1, 7).unwrap();
        drop(first);
        assert_eq!(registry.metrics.event_streams.get(), 1, "the end of the first takes no other");
        let refused = registry.metrics.event_streams_refused.clone();
        assert_eq!(refused.get_or_create(&ReasonLabel { reason: "buyer" }).get(), 2);
    }

    #[test]
    fn streams_are_a_fifth_of_the_connections() {
        let registry = registry(10);
        let streams = [1, 2].map(|number| follow(&registry, number, number).unwrap());
        assert!(follow(&registry, 3, 3).is_none());
        let refused = registry.metrics.event_streams_refused.clone();
        assert_eq!(refused.get_or_create(&ReasonLabel { reason: "process" }).get(), 1);
        drop(streams);
        assert_eq!(registry.metrics.event_streams.get(), 0);
        assert!(follow(&registry, 3, 3).is_some());
    }

    #[test]
    fn an_end_is_sent_once_and_frees_the_place() {
        let registry = registry(5);
        let mut stream = follow(&registry, 1, 1).unwrap();
        let intent = samples::intent(1);
        let ended = RequestRecord::failed(&intent.failure(Refusal::SoldOut, 1));
        registry.end(intent.request, ended);
        registry.end(intent.request, RequestRecord::queued(&intent));
        assert!(follow(&registry, 2, 2).is_some(), "the place is free before the stream is read");
        assert_eq!(news(&mut stream), Some(Some(StreamNews::Ended(ended))));
        assert_eq!(news(&mut stream), Some(None));
    }

    #[test]
    fn heartbeats_are_spread_over_the_polls_and_every_stream_gets_one_in_15_seconds() {
        let registry = registry(10_000);
        let buyers = 1..=600;
        let mut streams: Vec<_> =
            buyers.map(|number| follow(&registry, number, number).unwrap()).collect();
        let now = now_monotonic();
        for _ in 0..BEAT_EVERY {
            let looked_up = registry.begin_poll(now);
            assert_eq!(looked_up[&BUCKET].len(), 600 / 4, "each request once a second");
            let num_beats = streams.iter_mut().filter_map(news).count();
            assert_eq!(num_beats, 10, "the same share in each poll");
        }
        assert_eq!(BEAT_EVERY * POLL_EVERY_MS, 15_000);
    }

    #[test]
    fn hinted_requests_are_looked_up_at_once_and_the_others_seldom() {
        let registry = registry(1_000);
        let _streams: Vec<_> =
            (1..=100).map(|number| follow(&registry, number, number).unwrap()).collect();
        let now = now_monotonic();
        let requests = |poll: BTreeMap<BucketKey, Vec<(RequestId, BuyerId)>>| -> Vec<u64> {
            let mut found: Vec<_> =
                poll.into_values().flatten().map(|(request, _)| request.get()).collect();
            found.sort_unstable();
            found
        };
        let listening = registry.listen();
        assert_eq!(requests(registry.begin_poll(now)), [1, 21, 41, 61, 81]);
        let hinted = [50, 22, 999].map(|number| RequestId::new(number).unwrap());
        listening.hint(&hinted);
        assert_eq!(
            requests(registry.begin_poll(now)),
            [2, 22, 42, 50, 62, 82],
            "999 has no stream"
        );
        assert_eq!(requests(registry.begin_poll(now)), [3, 23, 43, 63, 83], "a hint is used once");
        drop(listening);
        assert_eq!(requests(registry.begin_poll(now)).len(), 25, "without hints, each second");
    }

    #[test]
    fn a_stream_ends_after_five_minutes_and_with_the_process() {
        let registry = registry(50);
        let mut streams = [1, 2].map(|number| follow(&registry, number, number).unwrap());
        registry.begin_poll(now_monotonic() + STREAM_MAX / 2);
        assert_eq!(registry.metrics.event_streams.get(), 2);
        registry.begin_poll(now_monotonic() + STREAM_MAX);
        assert_eq!(registry.metrics.event_streams.get(), 0);
        let mut last = follow(&registry, 3, 3).unwrap();
        registry.close();
        for stream in streams.iter_mut().chain([&mut last]) {
            while let Some(Some(last)) = news(stream) {
                assert_eq!(last, StreamNews::Beat);
            }
            assert_eq!(news(stream), Some(None));
        }
        assert!(follow(&registry, 4, 4).is_none());
    }
}
