//! Which dead letters: the filter of the `dlq` commands for many.

use chrono::{DateTime, SecondsFormat, TimeDelta};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::domain::{DeadLetterOrigin, DeadLetterState};
use crate::runtime::clock::wall_ms;

/// Conditions on dead letters; every one that is given must hold.
#[derive(Debug, Args)]
pub(super) struct FilterArgs {
    /// In this state; without it: open. A verb takes only open or parked
    #[arg(long, value_parser = PossibleValuesParser::new(states()))]
    state: Option<String>,
    /// Given up by this component
    #[arg(long, value_parser = PossibleValuesParser::new(origins()))]
    origin: Option<String>,
    /// With this text in the reason
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// With a request of this sale
    #[arg(long, value_name = "SALE")]
    sale: Option<String>,
    /// With a request for this SKU
    #[arg(long, value_name = "SKU", requires = "sale")]
    sku: Option<String>,
    /// With this request: its id, its number, or the id of the message that it is the first of
    #[arg(long, value_name = "REQUEST")]
    request: Option<String>,
    /// With a request of this buyer
    #[arg(long, value_name = "BUYER")]
    buyer: Option<String>,
    /// Given up at or after this time: RFC 3339, or an age such as 90s, 30m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<String>,
    /// Given up before this time, or longer ago than this age
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<String>,
}

impl FilterArgs {
    /// Its conditions as the query of the admin API.
    pub(super) fn query(&self) -> Vec<(&'static str, &str)> {
        let state = self.state.as_deref().unwrap_or(DeadLetterState::Open.name());
        [
            ("state", Some(state).filter(|state| *state != "all")),
            ("origin", self.origin.as_deref()),
            ("reason", self.contains.as_deref()),
            ("sale_id", self.sale.as_deref()),
            ("sku_id", self.sku.as_deref()),
            ("request_id", self.request.as_deref()),
            ("buyer_id", self.buyer.as_deref()),
            ("since", self.since.as_deref()),
            ("until", self.until.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }

    /// Whether no condition is given.
    pub(super) fn is_empty(&self) -> bool {
        self.state.is_none() && self.query().len() == 1
    }
}

fn origins() -> [&'static str; 3] {
    DeadLetterOrigin::ALL.map(DeadLetterOrigin::name)
}

fn states() -> Vec<&'static str> {
    DeadLetterState::ALL.into_iter().map(DeadLetterState::name).chain(["all"]).collect()
}

/// The time that an operator gives, as RFC 3339.
fn time(text: &str) -> Result<String, String> {
    time_at(text, wall_ms())
}

fn time_at(text: &str, now_ms: i64) -> Result<String, String> {
    if DateTime::parse_from_rfc3339(text).is_ok() {
        return Ok(text.to_owned());
    }
    let invalid = || format!("{text:?} is neither a time such as 2030-03-20T20:00:00Z nor an age");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(invalid)?;
    let number: u32 = number.parse().map_err(|_not_a_number| invalid())?;
    let age = match unit {
        "s" => TimeDelta::seconds(number.into()),
        "m" => TimeDelta::minutes(number.into()),
        "h" => TimeDelta::hours(number.into()),
        "d" => TimeDelta::days(number.into()),
        _ => return Err(invalid()),
    };
    let now = DateTime::from_timestamp_millis(now_ms).ok_or_else(invalid)?;
    let at = now.checked_sub_signed(age).ok_or_else(invalid)?;
    Ok(at.to_rfc3339_opts(SecondsFormat::Secs, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_an_age() {
        let at = |text| time_at(text, 1_800_000_000_000);
        assert_eq!(at("2030-03-20T20:00:00Z").unwrap(), "2030-03-20T20:00:00Z");
        assert_eq!(at("0s").unwrap(), "2027-01-15T08:00:00Z");
        assert_eq!(at("90s").unwrap(), "2027-01-15T07:58:30Z");
        assert_eq!(at("2h").unwrap(), "2027-01-15T06:00:00Z");
        assert_eq!(at("3d").unwrap(), "2027-01-12T08:00:00Z");
        for text in ["", "d", "-1h", "1w", "yesterday", "2030-03-20", "5秒"] {
            assert!(at(text).is_err(), "{text}");
        }
    }
}
