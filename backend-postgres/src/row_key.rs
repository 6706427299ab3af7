//! The names of rows.

use leasehold_api::Key;

/// No UTF-8 text contains this byte.
const END_OF_PREFIX: u8 = 0xff;

/// The primary key of a lock's row in `leasehold.locks`, and of its row in `leasehold.fences`: the prefix, the
/// byte FF, and the key. Without a prefix, it is the key alone.
///
/// Two locks with different prefixes or keys never share a row.
///
/// # Examples
/// ```
/// use leasehold_api::Key;
/// use leasehold_postgres::row_key;
///
/// # fn example() -> Result<(), leasehold_api::InvalidInput> {
/// assert_eq!(row_key("", &Key::new("invoice:42")?), b"invoice:42");
/// assert_eq!(row_key("billing:", &Key::new("eu:42")?), b"billing:\xffeu:42");
/// # Ok(())
/// # }
/// # example().unwrap();
/// ```
#[must_use]
pub fn row_key(prefix: &str, key: &Key) -> Vec<u8> {
    // A whole key, in place of the beginning of one.
    beginning_of_rows(prefix, key.as_str())
}

/// What the names of all rows begin with whose keys begin with this text.
pub(crate) fn beginning_of_rows(prefix: &str, beginning: &str) -> Vec<u8> {
    match prefix {
        "" => beginning.as_bytes().to_vec(),
        _ => [prefix.as_bytes(), &[END_OF_PREFIX], beginning.as_bytes()].concat(),
    }
}

/// The key whose row has this name, if its prefix is this one.
pub(crate) fn key_of(prefix: &str, name: &[u8]) -> Option<Key> {
    let key = match prefix {
        "" => name,
        _ => name
            .strip_prefix(prefix.as_bytes())?
            .strip_prefix(&[END_OF_PREFIX])?,
    };
    // Without a prefix, rows of other prefixes are here too. They are no text.
    Key::new(std::str::from_utf8(key).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits a text after its first `at` characters, into a prefix and a key.
    fn split(text: &[char], at: usize) -> (String, Key) {
        let (prefix, key) = text.split_at(at);
        let key: String = key.iter().collect();
        (prefix.iter().collect(), Key::new(key).expect("not empty"))
    }

    proptest! {
        /// The hardest case: prefix and key are the same text together.
        #[test]
        fn prefix_and_key_can_be_told_apart(
            text in proptest::collection::vec(any::<char>(), 1..40),
            at in any::<[proptest::sample::Index; 2]>(),
        ) {
            let [one, two] = at.map(|at| split(&text, at.index(text.len())));
            let is_same = row_key(&one.0, &one.1) == row_key(&two.0, &two.1);
            prop_assert_eq!(is_same, one == two);
        }
    }
}
