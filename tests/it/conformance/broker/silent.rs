//! A broker that stops answering on an open connection.

use std::sync::Arc;
use std::time::Duration;

use floodgate::broker::{Error, RabbitBroker, RabbitOptions, Route, Subscriber};
use tokio::time::timeout;

use super::{Process, message, take, topology};
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;

#[test]
fn a_subscription_that_is_not_had_in_time_ends_its_connection() {
    let server = RabbitMq::start();
    run(async {
        let proxy = FaultProxy::start(server.addr());
        let url = RabbitMq::url_by(proxy.addr());
        let mut options = RabbitOptions::new(&url, topology("silent")).unwrap();
        options.connect_timeout = Duration::from_mins(1);
        RabbitBroker::new(options.clone()).unwrap().depths().await.unwrap();
        options.connect_timeout = Duration::from_secs(5);
        let broker = Arc::new(RabbitBroker::new(options).unwrap());
        let process = Process { publisher: broker.clone(), subscriber: broker.clone() };
        process.publish_confirmed(vec![message(Route::Orders(0), 1)]).await;
        broker.depths().await.unwrap();

        proxy.set(Mode::Hold(None));
        let subscribing = broker.subscribe(Route::Orders(0), 1);
        let result = timeout(Duration::from_mins(1), subscribing).await.expect("an error in time");
        let error = result.err().unwrap();
        assert!(
            matches!(&error, Error::Unavailable { reason } if reason.contains("timed out after 5s"))
        );
        proxy.heal();
        let mut subscription = loop {
            if let Ok(subscription) = broker.subscribe(Route::Orders(0), 1).await {
                break subscription;
            }
        };
        assert_eq!(take(subscription.as_mut(), 1).await[0].headers.message_id, "m1");
    });
}
