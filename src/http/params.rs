//! Query parameters.
//!
//! Unknown and repeated parameters are refused: `?qty=2` must not silently buy one unit.

use std::borrow::Cow;
use std::str::FromStr;

use super::problem::{Problem, ProblemType};
use crate::inventory::{Item, Quantity, User};

/// The values of the parameters `names` in `query`, in the order of `names`.
///
/// # Errors
/// `bad-parameter` for an unknown or repeated name, or a value that is not UTF-8.
pub(super) fn parse<'q, const N: usize>(
    query: Option<&'q str>,
    names: [&'static str; N],
) -> Result<[Option<Cow<'q, str>>; N], Problem> {
    let mut values = [const { None }; N];
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let Some(at) = names.iter().position(|known| *known == name) else {
            return Err(unknown(&name, &names));
        };
        // decoding replaces bytes that are not UTF-8 by this character
        if value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(wrong(names[at], format!("the parameter `{name}` is not UTF-8")));
        }
        if values[at].replace(value).is_some() {
            return Err(wrong(names[at], format!("the parameter `{name}` is given twice")));
        }
    }
    Ok(values)
}

/// A problem with the value of parameter `name`.
fn wrong(name: &'static str, detail: String) -> Problem {
    Problem::new(ProblemType::BAD_PARAMETER, detail).with_parameter(name)
}

fn unknown(name: &str, names: &[&str]) -> Problem {
    // bounded: it goes back to the client
    let name: String = name.chars().take(40).collect();
    let detail = match names {
        [] => format!("the parameter `{name}` is unknown: this call has none"),
        _ => format!("the parameter `{name}` is unknown: this call has {}", names.join(", ")),
    };
    Problem::new(ProblemType::BAD_PARAMETER, detail).with_parameter(name)
}

/// The item of parameter `item`: the default item for `default` or no parameter, so that the name in an answer
/// can be sent back.
///
/// # Errors
/// `bad-item`.
pub(super) fn item(value: Option<&str>) -> Result<Item, Problem> {
    match value {
        None | Some("default") => Ok(Item::DEFAULT),
        Some(name) => Item::from_str(name).map_err(|error| {
            Problem::new(ProblemType::BAD_ITEM, error.to_string()).with_parameter("item")
        }),
    }
}

/// The quantity of parameter `quantity`: one unit by default.
///
/// # Errors
/// `bad-quantity`.
pub(super) fn quantity(value: Option<&str>) -> Result<Quantity, Problem> {
    let Some(text) = value else { return Ok(Quantity::ONE) };
    // any other text becomes 0, which is refused too
    let units = whole_number(text).and_then(|units| u32::try_from(units).ok()).unwrap_or(0);
    Quantity::new(units).map_err(|error| {
        Problem::new(ProblemType::BAD_QUANTITY, error.to_string()).with_parameter("quantity")
    })
}

/// The user of parameter `user`: empty by default.
///
/// # Errors
/// `bad-user`.
pub(super) fn user(value: Option<&str>) -> Result<User, Problem> {
    User::new(value.unwrap_or_default()).map_err(|error| {
        Problem::new(ProblemType::BAD_USER, error.to_string()).with_parameter("user")
    })
}

/// The whole number of parameter `name`, or `default` if there is none.
///
/// # Errors
/// `bad-parameter` if it is not a whole number from `min` to `max`.
pub(super) fn number(
    name: &'static str,
    value: Option<&str>,
    default: u64,
    (min, max): (u64, u64),
) -> Result<u64, Problem> {
    let Some(text) = value else { return Ok(default) };
    whole_number(text).filter(|number| (min..=max).contains(number)).ok_or_else(|| {
        wrong(name, format!("the parameter `{name}` is a whole number from {min} to {max}"))
    })
}

/// Digits alone: the standard parser would accept a sign.
fn whole_number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["item", "quantity", "user"];

    fn refused(query: &str) -> Problem {
        parse(Some(query), NAMES).expect_err(query)
    }

    #[test]
    fn parameters_are_found_decoded_and_optional() {
        assert_eq!(parse(None, NAMES).expect("no query"), [None, None, None]);
        let [item, quantity, user] =
            parse(Some("user=J%C3%BCrgen+K&item=a-1&"), NAMES).expect("all known");
        assert_eq!(item.as_deref(), Some("a-1"));
        assert_eq!(quantity, None);
        assert_eq!(user.as_deref(), Some("Jürgen K"));
    }

    #[test]
    fn unknown_repeated_and_undecodable_parameters_are_refused_by_name() {
        for (query, name) in [
            ("qty=2", "qty"),
            ("quantity=1&quantity=1", "quantity"),
            ("user=%ff", "user"),
            ("=1", ""),
        ] {
            let problem = refused(query);
            assert_eq!(problem.kind(), ProblemType::BAD_PARAMETER, "{query}");
            let text = format!("{problem:?}");
            assert!(text.contains(&format!("`{name}`")), "{text}");
        }
    }

    #[test]
    fn a_quantity_is_digits_from_one_to_the_maximum() {
        assert_eq!(quantity(None).expect("default"), Quantity::ONE);
        assert_eq!(quantity(Some("007")).expect("digits").get(), 7);
        assert_eq!(quantity(Some("1000000")).expect("the most").get(), Quantity::MAX);
        for text in ["", "0", "-1", "+1", "1.0", "1e3", " 1", "1000001", "4294967297", "x"] {
            let problem = quantity(Some(text)).expect_err(text);
            assert_eq!(problem.kind(), ProblemType::BAD_QUANTITY, "{text:?}");
        }
    }

    #[test]
    fn an_item_is_checked_and_default_means_the_default_item() {
        assert_eq!(item(None).expect("none"), Item::DEFAULT);
        assert_eq!(item(Some("default")).expect("by name"), Item::DEFAULT);
        assert_eq!(item(Some("tea-1")).expect("valid").name(), Some("tea-1"));
        for text in ["", "A", "a b", "a/b", "{a}", &"x".repeat(65)] {
            assert_eq!(item(Some(text)).expect_err(text).kind(), ProblemType::BAD_ITEM);
        }
    }

    #[test]
    fn a_number_keeps_to_its_range() {
        assert_eq!(number("limit", None, 100, (1, 1000)).expect("default"), 100);
        assert_eq!(number("limit", Some("1000"), 100, (1, 1000)).expect("the most"), 1000);
        for text in ["0", "1001", "", "ten", "99999999999999999999"] {
            let problem = number("limit", Some(text), 100, (1, 1000)).expect_err(text);
            assert_eq!(problem.kind(), ProblemType::BAD_PARAMETER);
        }
    }
}
