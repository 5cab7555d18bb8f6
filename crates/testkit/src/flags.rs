//! Flags of a program, parsed in its tests.

use clap::builder::Resettable;
use clap::{Args, Command, Error};

/// Parses flags without the environment variables, which may be set where the tests run.
///
/// # Errors
/// The flags are wrong.
pub fn parse<T: Args>(flags: &[impl AsRef<str>]) -> Result<T, Error> {
    let words = std::iter::once("program").chain(flags.iter().map(AsRef::as_ref));
    let command = T::augment_args(Command::new("program"));
    let command = command.mut_args(|argument| argument.env(Resettable::Reset));
    T::from_arg_matches(&command.try_get_matches_from(words)?)
}

/// Asserts that each flag is refused with this value, by an error with these words.
///
/// # Panics
/// One is accepted, or its error says something else.
pub fn assert_refused<T: Args>(wrong: &[(&str, &str, &str)]) {
    for (flag, value, words) in wrong {
        let error = parse::<T>(&[flag, value]).err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{flag} {value} is accepted"));
        assert!(error.contains(words), "{flag} {value}: {error}");
    }
}

/// Asserts that the variable of each flag is `FLASH_SALE_` and the name of the flag.
///
/// # Panics
/// One is not.
pub fn assert_variables<T: Args>() {
    for argument in T::augment_args(Command::new("program")).get_arguments() {
        let flag = argument.get_long().expect("only long flags");
        let variable = format!("FLASH_SALE_{}", flag.replace('-', "_").to_uppercase());
        let found = argument.get_env().and_then(|name| name.to_str());
        assert_eq!(found, Some(variable.as_str()), "--{flag}");
    }
}
