//! Lists in pages: how many, from where on, and whether there are more.

use crate::http::middleware::problem::Problem;

/// The number of rows asked for.
pub fn limit(asked: Option<u32>, default: u32, max: u32) -> Result<u32, Problem> {
    let limit = asked.unwrap_or(default);
    let wrong = || Problem::invalid(format!("limit must be from 1 to {max}"));
    (1..=max).contains(&limit).then_some(limit).ok_or_else(wrong)
}

/// The end of the page before, if there was one.
pub fn cursor<T>(
    sent: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let wrong = || Problem::invalid("cursor must be a next_cursor of this list");
    sent.map(|text| read(text).ok_or_else(wrong)).transpose()
}

/// Cuts rows to a page and returns the cursor of the next one, where there is one: `limit + 1` rows
/// were asked for to know that.
pub fn cut<T>(rows: &mut Vec<T>, limit: u32, show: impl FnOnce(&T) -> String) -> Option<String> {
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    rows.last().filter(|_| has_more).map(show)
}
