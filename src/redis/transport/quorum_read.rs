//! Asking several servers the same, when some of them may be gone or behind the times.

use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ConnectionOptions;
use super::url::ServerAddress;

/// Asks all at once, each within the time for connecting, until more than half have answered or
/// nobody else can; returns the answer with the greatest age of news (`E`), or why there is none.
pub(super) async fn survey<E: Ord, T, F>(
    options: &ConnectionOptions,
    nodes: &[ServerAddress],
    ask: impl Fn(ServerAddress) -> F,
) -> Result<T, String>
where
    F: Future<Output = Result<(E, T), String>>,
{
    let asked = nodes.iter().map(|node| {
        let answer = tokio::time::timeout(options.connect_timeout, ask(node.clone()));
        async move {
            let late = |_| format!("no answer within {:?}", options.connect_timeout);
            let answer = answer.await.map_err(late).and_then(|answer| answer);
            answer.map_err(|why| format!("{node}: {why}"))
        }
    });
    let mut answers = pin!(asked.collect::<FuturesUnordered<_>>());
    let (mut num_answers, mut best, mut reasons) = (0, None::<(E, T)>, Vec::new());
    while num_answers <= nodes.len() / 2 {
        match answers.next().await {
            Some(Ok((news, answer))) => {
                num_answers += 1;
                if best.as_ref().is_none_or(|(newest, _)| news > *newest) {
                    best = Some((news, answer));
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
            scripts: [].into(),
        }
    }

    type ServerAnswer = Result<(u32, &'static str), String>;

    /// What the survey finds when the servers, by their ports, answer like this; `None` is silence.
    fn found(answers: &[Option<ServerAnswer>]) -> Result<&'static str, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let options = options();
        let nodes = nodes(u16::try_from(answers.len()).unwrap());
        let ask = |node: ServerAddress| match answers[usize::from(node.port) - 1].clone() {
            Some(answer) => ready(answer).boxed(),
            None => pending().boxed(),
        };
        runtime.block_on(survey(&options, &nodes, ask))
    }

    #[test]
    fn the_newest_of_more_than_half_is_believed() {
        assert_eq!(found(&[Some(Ok((1, "old"))), Some(Ok((2, "new"))), None]), Ok("new"));
        let gone = || Some(Err("gone".to_owned()));
        assert_eq!(found(&[gone(), Some(Ok((1, "left"))), gone()]), Ok("left"));
        assert_eq!(found(&[None, Some(Ok((1, "left"))), None]), Ok("left"));
        assert_eq!(found(&[gone(), None]), Err("a:1: gone; a:2: no answer within 20ms".to_owned()));
    }
}
