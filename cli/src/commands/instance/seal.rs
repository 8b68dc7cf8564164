//! `leasehold instance seal`: nothing of it goes to the API.

use std::path::Path;

use domain::instances::check_variable;
use domain::instances::sealed::{self, Recipient};
use secrecy::{ExposeSecret as _, SecretString};

use super::Context;
use crate::exit::{Ending, Exit};
use crate::input;

/// The largest value that is read; all of an environment, sealed, may have 64 KiB.
const MAX_BYTES: u64 = 32 * 1024;

pub(super) const HELP: &str = "Example:\n  \
    leasehold region list --app acme    # the column CONFIG KEY\n  \
    leasehold instance seal DATABASE_KEY --to age1… --to age1… < secret.txt >> ledger.env\n  \
    leasehold instance create acme ledger.acme.example --region eu --env-file ledger.env\n\n\
    The value is read from stdin, without the newline that ends it, and is sealed on this machine: neither the API nor the \
    database sees it. Name every key of the region, and of those that the instance may move to: whoever holds one of them \
    opens it, and a sealed text never tells to whom it is sealed.";

#[derive(Debug, clap::Args)]
pub(crate) struct Seal {
    /// The variable that the child reads
    #[arg(value_parser = variable)]
    name: String,
    /// A box's recipient, of `leasehold region list`; give it again for each further one
    #[arg(long = "to", value_name = "RECIPIENT", required = true)]
    to: Vec<String>,
}

/// Before the value is read: what the door refuses need not be sealed.
fn variable(name: &str) -> Result<String, &'static str> {
    check_variable(name).map(|()| name.to_owned())
}

/// Prints the line of an environment file.
pub(super) fn run(context: &Context, args: &Seal) -> anyhow::Result<Exit> {
    let to = recipients(&args.to)?;
    let read = SecretString::from(input::read(Path::new("-"), MAX_BYTES)?);
    let plain = SecretString::from(without_end(read.expose_secret()));
    if plain.expose_secret().is_empty() {
        // What fills a pipe may have failed.
        let message = "no value came on stdin: `printf %s VALUE | leasehold instance seal …`".to_owned();
        return Err(Ending { exit: Exit::Usage, message }.into());
    }
    if plain.expose_secret().contains('\0') {
        let message = "the value holds a NUL, which no process can have in its environment".to_owned();
        return Err(Ending { exit: Exit::Usage, message }.into());
    }
    let answer = serde_json::json!({"name": args.name, "value": sealed::seal(&to, &plain)});
    let line = |_: &_| format!("{}={}", args.name, answer["value"].as_str().unwrap_or_default());
    context.output.show(&answer, line)?;
    Ok(Exit::Ok)
}

/// Whoever mixes up the two halves of a key gave the secret one: what is wrong is not repeated.
fn recipients(given: &[String]) -> Result<Vec<Recipient>, Ending> {
    let parsed: Result<Vec<_>, _> = given.iter().map(|text| text.parse()).collect();
    parsed.map_err(|why| Ending { exit: Exit::Usage, message: format!("--to {why}; what was given is not shown here") })
}

/// What an editor or `echo` puts behind a value is not the value's.
fn without_end(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_door_refuses_is_refused_before_anything_is_sealed() {
        for wrong in ["", "A=B", "1A", "LEASEHOLD_X", "CARLOS_REGION", "LD_PRELOAD", &"A".repeat(256)] {
            assert!(variable(wrong).is_err(), "{wrong}");
        }
        for right in ["A", "_1", "tenant_KEY", &"A".repeat(255)] {
            assert_eq!(variable(right).as_deref(), Ok(right));
        }
    }

    #[test]
    fn what_is_no_recipient_is_refused_and_not_repeated() {
        let secret = "AGE-SECRET-KEY-1QQQQ".to_owned();
        let refused = recipients(std::slice::from_ref(&secret)).unwrap_err();
        assert!(refused.exit == Exit::Usage && !refused.message.contains(&secret), "{}", refused.message);
    }

    #[test]
    fn one_newline_at_the_end_is_not_the_values() {
        assert_eq!(["a\n", "a\r\n", "a\n\n", "a b", ""].map(without_end), ["a", "a", "a\n", "a b", ""]);
    }
}
