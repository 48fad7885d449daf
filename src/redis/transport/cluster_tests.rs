use super::*;

fn at(host: &str, port: u16) -> ServerAddress {
    ServerAddress { host: host.to_owned(), port }
}

#[test]
fn slots_are_parsed_with_their_masters() {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let master = |host, port| Value::Array(vec![host, Value::Int(port), text("id")]);
    let range = |first, last, master: &Value| {
        let replica = Value::Array(vec![text("r"), Value::Int(9), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master.clone(), replica])
    };
    let answer = Value::Array(vec![
        range(100, 16_383, &master(text("b"), 2)),
        range(0, 98, &master(Value::Nil, 1)),
        range(99, 99, &master(text(""), 1)),
    ]);
    let expected = vec![(0, 98, at("a", 1)), (99, 99, at("a", 1)), (100, 16_383, at("b", 2))];
    assert_eq!(parse_slots(&answer, &at("a", 7)), Some(expected));

    let out_of_range = Value::Array(vec![range(0, 70_000, &master(text("b"), 2))]);
    for invalid in [Value::Int(1), Value::Array(vec![Value::Int(1)]), out_of_range] {
        assert_eq!(parse_slots(&invalid, &at("a", 7)), None, "{invalid:?}");
    }
}

#[test]
fn members_and_missing_slots_are_parsed() {
    let text = "a1 10.0.0.1:7000@17000,name myself,master - 0 0 1 connected 0-5460 5462\n\
                b2 10.0.0.1:7001@17001 master,fail? - 0 5 2 connected 5463-10922 [9->-a1]\n\
                c3 10.0.0.1:7002@17002 master - 0 5 3 connected 10923-16382\n\
                d4 10.0.0.1:7003@17003 slave a1 0 5 1 connected\n\
                e5 :0@0 master,noaddr - 0 5 1 disconnected\n\n";
    let slots = parse_nodes(text, &at("10.0.0.1", 7000), Vec::new());
    assert_eq!(slots.missing, [(5461, 5461), (16383, 16383)]);
    assert_eq!(slots.masters(), [at("10.0.0.1", 7000), at("10.0.0.1", 7001), at("10.0.0.1", 7002)]);
    let failing: Vec<bool> = slots.members.iter().map(|member| member.is_failing).collect();
    assert_eq!(failing, [false, true, false, false]);
}

#[test]
fn a_member_without_address_is_the_queried_one() {
    let slots = parse_nodes(
        "a1 :7000@17000 myself,master - 0 0 0 connected\n",
        &at("10.0.0.1", 7000),
        Vec::new(),
    );
    assert_eq!(slots.members.first().map(|member| member.node.clone()), Some(at("10.0.0.1", 7000)));
    assert_eq!(slots.missing, [(0, 16383)]);
    assert_eq!(slots.masters(), [at("10.0.0.1", 7000)], "it has no slots");
}
