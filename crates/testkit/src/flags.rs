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
