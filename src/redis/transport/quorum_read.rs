//! One question to several servers, of which some may be unreachable or outdated.

use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ConnectionOptions;
use super::url::ServerAddress;

/// Queries all servers at once, each within `connect_timeout`, until a majority has answered or no
/// query is left. Returns the answer with the newest version (`E`).
///
/// # Errors
/// No server answered; one reason per server.
pub(super) async fn read_newest<E: Ord, T, F>(
    options: &ConnectionOptions,
    nodes: &[ServerAddress],
    query: impl Fn(ServerAddress) -> F,
) -> Result<T, String>
where
    F: Future<Output = Result<(E, T), String>>,
{
    let queries = nodes.iter().map(|node| {
        let answer = tokio::time::timeout(options.connect_timeout, query(node.clone()));
        async move {
            let timed_out = |_| format!("no answer within {:?}", options.connect_timeout);
            let answer = answer.await.map_err(timed_out).and_then(|answer| answer);
            answer.map_err(|reason| format!("{node}: {reason}"))
        }
    });
    let mut answers = pin!(queries.collect::<FuturesUnordered<_>>());
    let (mut num_answers, mut best, mut reasons) = (0, None::<(E, T)>, Vec::new());
    while num_answers <= nodes.len() / 2 {
        match answers.next().await {
            Some(Ok((version, answer))) => {
                num_answers += 1;
                if best.as_ref().is_none_or(|(best_version, _)| version > *best_version) {
                    best = Some((version, answer));
                }
            }
            Some(Err(reason)) => reasons.push(reason),
            None => break,
        }
    }
    best.map(|(_, answer)| answer).ok_or_else(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn nodes(number: u16) -> Vec<ServerAddress> {
        (1..=number).map(|port| ServerAddress { host: "a".to_owned(), port }).collect()
    }

    fn options() -> ConnectionOptions {
        let short = Duration::from_millis(20);
        ConnectionOptions {
            url: "redis://a".parse().unwrap(),
            connect_timeout: short,
            command_timeout: short,
            user_timeout: short,
            reconnect_min: short,
            reconnect_max: short,
            durability: super::super::Durability::Plain,
            replicas_min: 1,
            replicas_wait_ms: 1,
            scripts: [].into(),
        }
    }

    type ServerAnswer = Result<(u32, &'static str), String>;

    /// The result for these answers, by port; `None`: the server does not answer.
    fn newest_of(answers: &[Option<ServerAnswer>]) -> Result<&'static str, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let options = options();
        let nodes = nodes(u16::try_from(answers.len()).unwrap());
        let query = |node: ServerAddress| match answers[usize::from(node.port) - 1].clone() {
            Some(answer) => ready(answer).boxed(),
            None => pending().boxed(),
        };
        runtime.block_on(read_newest(&options, &nodes, query))
    }

    #[test]
    fn the_newest_answer_of_a_majority_is_returned() {
        assert_eq!(newest_of(&[Some(Ok((1, "old"))), Some(Ok((2, "new"))), None]), Ok("new"));
        let gone = || Some(Err("gone".to_owned()));
        assert_eq!(newest_of(&[gone(), Some(Ok((1, "left"))), gone()]), Ok("left"));
        assert_eq!(newest_of(&[None, Some(Ok((1, "left"))), None]), Ok("left"));
        assert_eq!(
            newest_of(&[gone(), None]),
            Err("a:1: gone; a:2: no answer within 20ms".to_owned())
        );
    }
}
