//! Pagination of lists: limit, cursor, and the cursor of the next page.

use crate::http::middleware::problem::Problem;

/// The requested page size, or `default`.
///
/// # Errors
/// `invalid-request` outside of 1 to `max`.
pub fn limit(requested: Option<u32>, default: u32, max: u32) -> Result<u32, Problem> {
    let limit = requested.unwrap_or(default);
    let invalid = || Problem::invalid(format!("limit must be from 1 to {max}"));
    (1..=max).contains(&limit).then_some(limit).ok_or_else(invalid)
}

/// The cursor of the request, if it has one.
///
/// # Errors
/// `invalid-request` if `read` rejects it.
pub fn cursor<T>(
    sent: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let invalid = || Problem::invalid("cursor must be a next_cursor of this list");
    sent.map(|text| read(text).ok_or_else(invalid)).transpose()
}

/// Truncates `rows` to a page and returns the cursor of the next page. The caller reads `limit + 1`
/// rows, so that an extra row proves a next page.
pub fn cut<T>(rows: &mut Vec<T>, limit: u32, encode: impl FnOnce(&T) -> String) -> Option<String> {
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    rows.last().filter(|_| has_more).map(encode)
}
