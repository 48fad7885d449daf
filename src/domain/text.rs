//! Texts of a limited length, and bytes as hexadecimal digits.

/// The first `max` characters of a text.
pub fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

/// The bytes as lower-case hexadecimal digits, two for each.
pub(crate) fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    let digits = bytes.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// The bytes of a text of hexadecimal digits, two for each byte.
pub(crate) fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |byte: &u8| char::from(*byte).to_digit(16).and_then(|n| u8::try_from(n).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(nibble(high)? << 4 | nibble(low)?));
    rest.is_empty().then(|| bytes.collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_between_characters() {
        assert_eq!(clip("秒杀!", 2), "秒杀");
        assert_eq!(clip("ab", 9), "ab");
    }
}
