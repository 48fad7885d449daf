//! Problem documents.

use super::*;
use crate::domain::TraceId;

fn trace() -> TraceContext {
    TraceContext::new_root()
}

#[test]
fn the_constant_body_equals_the_built_body() {
    for code in ProblemCode::ALL {
        let (trace, more) = (trace(), ProblemDetails::default());
        let plain: Value = serde_json::from_str(&constant_body(*code, &trace)).unwrap();
        let full: Value = serde_json::from_str(&Problem::from(*code).body(&more, &trace)).unwrap();
        assert_eq!(plain, full);
        assert_eq!(plain["trace_id"], trace.trace.to_string());
        assert!(StatusCode::from_u16(code.status()).is_ok());
    }
}

#[test]
fn codes_are_unique_and_cover_the_refusals_of_the_domain() {
    let mut names: Vec<_> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ProblemCode::ALL.len());
    for kind in Refusal::KINDS {
        assert!(names.contains(&kind), "{kind}");
    }
    let first = crate::domain::RequestId::new(1).unwrap();
    let refusals = [
        Refusal::SoldOut,
        Refusal::AlreadyPurchased { first },
        Refusal::QuotaExceeded { owned: 0, limit: 0 },
        Refusal::RequestIdReused,
        Refusal::NotStarted,
        Refusal::Ended,
    ];
    for refusal in &refusals {
        assert_eq!(ProblemCode::from(refusal).as_str(), refusal.code());
    }
}

#[test]
fn client_input_in_the_detail_is_escaped() {
    let problem = Problem::invalid("unknown field `\"},{\n\u{0}`").with("faults", vec!["a\"b"]);
    let body = problem.body(problem.more.as_ref().unwrap(), &trace());
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["detail"], "unknown field `\"},{\n\u{0}`");
    assert_eq!(body["faults"][0], "a\"b");
}

#[test]
fn a_trace_id_keeps_its_leading_zeros() {
    let body = constant_body(ProblemCode::SoldOut, &TraceContext { trace: TraceId(1), ..trace() });
    assert!(body.ends_with("00000000000000000000000000000001\"}"), "{body}");
}
