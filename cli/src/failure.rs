//! A failure as people and programs read it: the API speaks to callers of HTTP, the command line of verbs and flags.

use serde_json::{Value, json};
use wire::{Code, Problem};

use crate::exit::{self, Exit};

/// Says that a stale state was read by the command itself, which reads it again when it is repeated.
#[derive(Debug, Clone, Copy)]
struct Repeatable;

impl std::fmt::Display for Repeatable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("somebody else changed it meanwhile, and nothing was changed here")
    }
}

/// The failure of a command that read what it changes: where that became stale meanwhile, repeating it is the next step.
pub(crate) fn repeatable(error: anyhow::Error) -> anyhow::Error {
    if problem_of(&error).is_some_and(|problem| problem.is(Code::StaleRevision)) {
        error.context(Repeatable)
    } else {
        error
    }
}

/// Says what was not found, where that is why it failed: the API's words speak of an address.
pub(crate) fn absent(mut error: anyhow::Error, what: &str) -> anyhow::Error {
    if let Some(wire::Error::Problem(problem)) = error.downcast_mut()
        && problem.is(Code::NotFound)
    {
        problem.detail = format!("there is no {what}, or this key may not see it");
    }
    error
}

/// Whose words say what happened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The API's detail, which says more than the code does.
    Detail,
    /// The code's title: its detail tells callers of HTTP what to send.
    Title,
}

/// What is said of a problem of this code, and what to do next; every code has its row.
fn words(code: Code) -> (Told, &'static str) {
    use Told::{Detail, Title};
    match code {
        Code::MalformedRequest | Code::WrongContentType | Code::InvalidQuery | Code::MethodNotAllowed => (
            Detail,
            "check the arguments against the verb's --help; if they are right, this program and the API differ in version",
        ),
        Code::RegionUnknown => (
            Detail,
            "`leasehold region list` shows the regions that exist; an administrator defines one with `leasehold region set`",
        ),
        Code::RegionUnarmed => (
            Detail,
            "choose an armed one of `leasehold region list`, or have an administrator set it with `leasehold region set … --armed`",
        ),
        Code::RegionCannotHost => (
            Detail,
            "start a box there with `leasehold worker --node … --region …`, or choose one of `leasehold region list` that can host, and that has a config key where values of the environment are sealed",
        ),
        Code::SameRegion => (Detail, "name another region; `leasehold region list` shows them"),
        Code::KindNotMovable | Code::BackingNotMovable => {
            (Detail, "register it anew in the other region with `leasehold instance create`")
        }
        Code::Replica => (Detail, "move the original; `leasehold instance list` shows it"),
        Code::FleetNotMovable | Code::PoolNotMovable | Code::HibernateRequired => {
            (Detail, "leave it where it is: no verb of this version changes that")
        }
        Code::Unauthenticated => (
            Detail,
            "name a file that holds a valid key with LEASEHOLD_KEY_FILE; `leasehold key create` makes one, `leasehold key bootstrap` the first",
        ),
        Code::PermissionDenied => {
            (Detail, "use another key, or have an administrator make one with `leasehold key create`")
        }
        Code::NotFound => {
            (Detail, "check the name with the noun's `list`, and the key's scopes with `leasehold key list`")
        }
        Code::JobConflict => (Detail, "`leasehold job show` tells the job's present state"),
        Code::MoveInFlight => (Detail, "`leasehold instance why` tells how far it is, what holds it up and what to do"),
        Code::NoMove => (Detail, "`leasehold instance moves` lists those that are over"),
        Code::FreezeOverBudget => (
            Detail,
            "`leasehold instance cut --force` cuts it all the same; `leasehold instance abort` gives it up, so that it begins again with another --freeze-budget",
        ),
        Code::MoveNotCutting => (Detail, "`leasehold instance abort` gives up a move that prepares or is ready"),
        Code::MovePastRecall => (Detail, "`leasehold instance why` tells what the landing waits for"),
        Code::InstanceServed => {
            (Detail, "`leasehold instance move` moves it; a box that is dead stands in the way for a minute")
        }
        Code::RegionPurging => {
            (Detail, "wait a minute or two and try again; after a landing that was given up, a quarter of an hour")
        }
        Code::MoveNotReady => (
            Detail,
            "wait until it is ready; `leasehold instance why` tells what is left, what holds it up and what to do",
        ),
        Code::NotPlaced => {
            (Detail, "`leasehold instance why` tells what it waits for; `leasehold worker list` shows the boxes")
        }
        Code::HostTaken => (Detail, "choose another host, or look at the present one with `leasehold instance show`"),
        Code::RegionInUse => (
            Detail,
            "name the region's own bucket with --data-bucket and --data-bucket-region; `leasehold region list --json` shows them",
        ),
        Code::EnrolmentRefused => (
            Detail,
            "`leasehold node token` issues another token; the audit trail tells operators why this one was refused",
        ),
        Code::SessionRefused => {
            (Detail, "enrol the machine again: `leasehold node token`, then `leasehold node enrol`")
        }
        Code::NodeDecommissioned => (Detail, "make a record of another identity with `leasehold node create`"),
        Code::StaleReport => (Detail, "`leasehold node report` shows the record's incarnation and number"),
        Code::NameTaken => (Detail, "choose another name, or use what is there"),
        Code::StaleRevision => {
            (Title, "look at it again with the noun's `show`, decide, and pass its revision with --if-revision")
        }
        Code::BodyTooLarge | Code::PayloadTooLarge => (Detail, "store the data elsewhere and pass its address"),
        Code::ValidationFailed => (Detail, "correct the named values; the verb's --help says what its flags take"),
        Code::UnknownKind => (
            Detail,
            "correct the kind; for one that only newer workers know, add --allow-unknown-kind, with a key that also gives jobs.operate",
        ),
        Code::KindNotPublic => (Title, "use the verb of what the job works on, e.g. `leasehold instance move`"),
        Code::IdempotencyKeyReused => (Title, "pass a fresh --idempotency-key for each new call"),
        Code::RateLimited => (Detail, "wait a moment, then repeat the command"),
        Code::Internal => (Detail, "look for the request id in the API's log, and report it"),
        Code::DatabaseUnavailable => (
            Title,
            "repeat the command when the API's database is back; with --idempotency-key a repeated call acts once",
        ),
        Code::RequestTimeout => (Title, "repeat the command, or ask for less at once with --limit"),
        Code::TooManyListeners => (Detail, "close a listener of this key, then repeat the command"),
        Code::FormTokenMismatch => (Detail, "open the dashboard's page again and send the form from there"),
    }
}

/// Whether `error` is the API's problem of this code.
pub(crate) fn is(error: &anyhow::Error, code: Code) -> bool {
    problem_of(error).is_some_and(|problem| problem.is(code))
}

/// The problem in `error`, where the API told one.
fn problem_of(error: &anyhow::Error) -> Option<&Problem> {
    error.chain().find_map(|cause| cause.downcast_ref::<wire::Error>()).and_then(wire::Error::problem)
}

/// What happened, without what to do; a code of a newer API is told in that API's own words.
fn told(problem: &Problem) -> &str {
    match Code::parse(&problem.code).map(words) {
        Some((Told::Title, _)) => &problem.title,
        Some((Told::Detail, _)) | None => &problem.detail,
    }
}

fn hint(error: &anyhow::Error, problem: &Problem) -> Option<&'static str> {
    if error.is::<Repeatable>() {
        return Some("repeat the command: it looks at the present state anew");
    }
    Code::parse(&problem.code).map(|code| words(code).1)
}

/// The chain of causes, each told once: an error of the database's client says in its own sentence what its cause says.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut told: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(sqlx::Error::Database(refusal)) = cause.downcast_ref() {
            // Behind the message it would tell a line of PostgreSQL's own source.
            told.push(refusal.message().to_owned());
            break;
        }
        let text = cause.to_string();
        if told.last().is_none_or(|last| !last.ends_with(&text)) {
            told.push(text);
        }
    }
    told.join(": ")
}

/// What to do where no API answered.
fn hint_of_silence(error: &anyhow::Error) -> Option<&'static str> {
    let silent =
        |cause: &wire::Error| matches!(cause, wire::Error::Unreachable { .. } | wire::Error::Unexpected { .. });
    error.chain().find_map(|cause| cause.downcast_ref::<wire::Error>()).filter(|cause| silent(cause)).map(|_| {
        "say where the API is with LEASEHOLD_URL (or url in the configuration), or start one: `leasehold dev` runs all of \
         it on this machine, `leasehold api` the API alone"
    })
}

/// What the causes before the API's answer say.
fn context(error: &anyhow::Error) -> String {
    error.chain().take_while(|cause| !cause.is::<wire::Error>()).map(|cause| format!("{cause}: ")).collect()
}

/// The failure for people.
pub(crate) fn for_people(error: &anyhow::Error) -> String {
    let Some(problem) = problem_of(error) else {
        let hint = hint_of_silence(error).map(|hint| format!("\n  next: {hint}"));
        return format!("leasehold: {}{}", causes(error), hint.unwrap_or_default());
    };
    let told = told(problem);
    let mut text = format!("leasehold: {}{told} ({})", context(error), problem.code);
    // A wrong value that the sentence tells is not told again below it; of an unknown kind it says all that there is.
    let is_told = |detail: &str| told.contains(detail) || problem.is(Code::UnknownKind);
    for wrong in problem.errors.iter().filter(|wrong| !is_told(&wrong.detail)) {
        let place = wrong.pointer.as_deref().or(wrong.parameter.as_deref()).unwrap_or_default();
        text += "\n  ";
        text += place;
        text += ": ";
        text += &wrong.detail;
    }
    if problem.is(Code::Internal)
        && let Some(id) = &problem.request_id
    {
        text += "\n  request id: ";
        text += id;
    }
    if let Some(hint) = hint(error, problem) {
        text += "\n  next: ";
        text += hint;
    }
    text
}

/// The failure for programs: the API's problem with this program's exit code and hint, or one of the same shape.
pub(crate) fn for_programs(error: &anyhow::Error) -> Value {
    let exit = exit::code_of(error);
    let Some(problem) = problem_of(error) else {
        let mut value = local(exit, &causes(error));
        value["hint"] = json!(hint_of_silence(error));
        return value;
    };
    let mut value = json!(problem);
    value["errors"] = json!(problem.errors);
    value["exit_code"] = json!(exit as u8);
    value["detail"] = json!(format!("{}{}", context(error), told(problem)));
    value["hint"] = json!(hint(error, problem));
    value
}

/// A failure that no API told, in the shape of one that it did.
pub(crate) fn local(exit: Exit, detail: &str) -> Value {
    json!({"code": exit.word(), "title": exit.title(), "detail": detail, "errors": [], "exit_code": exit as u8, "hint": null})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hint_speaks_http() {
        for code in Code::ALL {
            let (_, hint) = words(*code);
            for word in ["/v1", "GET ", "PUT ", "POST ", "{app}", "allow_unknown_kind", "If-Match", "Idempotency-Key"] {
                assert!(!hint.contains(word), "{}: {hint}", code.as_str());
            }
        }
    }

    #[test]
    fn every_page_of_an_error_has_a_documented_exit_code_and_a_next_step() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let readme = std::fs::read_to_string(root.join("README.md")).expect("the README");
        let documented = readme.split_once("\nExit codes: ").expect("the exit codes").1;
        let documented = documented.split_once("`leasehold --help`").expect("their end").0;
        let pages: Vec<String> = std::fs::read_dir(root.join("docs/errors"))
            .expect("the pages")
            .map(|page| page.expect("a page").path().file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(pages.len(), Code::ALL.len(), "a page for each code");
        for name in pages {
            let code = Code::parse(&name).unwrap_or_else(|| panic!("{name} is no code"));
            let problem = Problem::new(code, "It failed.");
            let error = anyhow::Error::from(wire::Error::Problem(Box::new(problem)));
            let told = for_programs(&error);
            let exit = told["exit_code"].as_u64().expect("a number");
            assert_ne!(exit, 0, "{name}");
            assert!(exit::HELP.lines().any(|line| line.starts_with(&format!("  {exit}  "))), "--help: {exit}");
            assert!(format!(" · {documented}").contains(&format!(" · {exit} ")), "the README: {exit}");
            assert!(told["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{name} has no next step");
        }
        // And nothing is documented in one place alone.
        let in_help: Vec<&str> = exit::HELP.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        let in_readme: Vec<&str> = documented.split('·').filter_map(|part| part.split_whitespace().next()).collect();
        assert_eq!(in_help, in_readme);
    }

    #[test]
    fn a_code_of_a_newer_api_is_told_in_its_own_words() {
        let mut problem = Problem::new(Code::NotFound, "The moon is full.");
        problem.code = "moon_full".to_owned();
        let error = anyhow::Error::from(wire::Error::Problem(Box::new(problem)));
        assert_eq!(for_people(&error), "leasehold: The moon is full. (moon_full)");
    }
}
