use lapin::protocol::AMQPError;

use super::*;

fn explained(kind: AMQPErrorKind, message: &str) -> Error {
    let answer = AMQPError::new(kind, message.into());
    explain(&ErrorKind::ProtocolError(answer).into(), "queue", "fg.orders.0")
}

#[test]
fn a_remedy_names_the_virtual_host_and_deletes_no_orders() {
    let refused = |vhost: &str| {
        let message = format!(
            "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue \
             'fg.orders.0' in vhost {vhost}: received the value '7'"
        );
        let kind = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
        let Error::Topology { what } = explained(kind, &message) else { panic!("{message}") };
        what
    };
    for (vhost, typed) in [
        ("'/'", "/"),
        ("'shop-1'", "shop-1"),
        ("'a b'", "'a b'"),
        ("'a`b'", "VHOST"),
        ("", "VHOST"),
    ] {
        let what = refused(vhost);
        let delete = format!("`rabbitmqctl delete_queue fg.orders.0 -p {typed} --if-empty`");
        assert!(what.contains(&delete), "{what}");
        assert!(what.contains(&format!("list_queues -p {typed} name messages")), "{what}");
    }
    let message = "ACCESS_REFUSED - access to queue 'fg.orders.0' in vhost 'shop' refused";
    let kind = AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED);
    let Error::Topology { what } = explained(kind, message) else { panic!("{message}") };
    assert!(what.contains("set_permissions -p shop USER"), "{what}");
}

#[test]
fn an_unavailable_broker_is_not_a_topology_error() {
    for (id, is_topology) in [
        (320, false),
        (402, true),
        (501, false),
        (502, false),
        (503, true),
        (504, false),
        (505, false),
        (506, false),
        (530, true),
        (540, true),
        (541, false),
    ] {
        let kind = AMQPErrorKind::Hard(AMQPHardError::from_id(id).unwrap());
        let error = explained(kind, "said so");
        assert_eq!(matches!(error, Error::Topology { .. }), is_topology, "{id}: {error}");
        assert!(is_topology || error == Error::Unavailable { reason: format!("said so ({id})") });
    }
    let locked = AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED);
    assert!(matches!(explained(locked, "exclusive"), Error::Topology { .. }));
    let gone = explain(&ErrorKind::MissingHeartbeatError.into(), "queue", "fg.orders.0");
    assert!(matches!(gone, Error::Unavailable { .. }));
}
