//! Jobs at the door: known kinds, arguments of the right shape, values within their bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::authority::{Caller, Permission};
use domain::ids::{JobId, Kind, QueueName};
use domain::queue::{self, KindSpec, policy};
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use wire::{Code, FieldError};

use super::body::escape;
use super::failure::Failure;

/// Most broken rules that one answer lists.
const MAX_ERRORS: usize = 50;

/// How the names of our own kinds begin. None of them is taken as unknown: a newer worker may know it as an inner one.
const OURS: [&str; 4] = ["artifact.", "instance.", "node.", "platform."];

/// The kinds that this program knows, each with its compiled schema.
#[derive(Debug)]
pub struct Catalogue {
    kinds: BTreeMap<Kind, (KindSpec, Validator)>,
}

impl Catalogue {
    /// Compiles each kind's schema, once.
    ///
    /// # Panics
    /// When a kind's schema is no JSON Schema: our own mistake, found at the first start.
    #[must_use]
    pub fn new(kinds: Vec<KindSpec>) -> Self {
        let compile = |spec: KindSpec| {
            let validator =
                jsonschema::validator_for(&spec.schema).expect("a kind's schema is derived, so it is valid");
            (spec.kind.clone(), (spec, validator))
        };
        Self { kinds: kinds.into_iter().map(compile).collect() }
    }

    /// Each kind, by name.
    pub fn iter(&self) -> impl Iterator<Item = &KindSpec> {
        self.kinds.values().map(|(spec, _)| spec)
    }

    /// Judges a job as it is asked for; `at` is where it stands in the body.
    ///
    /// # Errors
    /// `validation_failed` with a pointer to each value, `unknown_kind`, `kind_not_public`, `payload_too_large`,
    /// `permission_denied` for an unknown kind by a caller who may not operate jobs.
    pub fn admit(
        &self,
        caller: &Caller,
        asked: &wire::NewJob,
        traceparent: Option<&str>,
        at: &str,
    ) -> Result<queue::NewJob, Failure> {
        let named = |field: &str, error: domain::ids::InvalidName| Failure::field(format!("{at}/{field}"), error.rule);
        let kind = Kind::new(asked.kind.as_str()).map_err(|error| named("kind", error))?;
        let mut job = match self.kinds.get(&kind) {
            Some((spec, _)) if !spec.public => return Err(not_public(&kind, at)),
            Some((spec, validator)) => {
                check_size(asked, at)?;
                check_args(validator, &asked.args, at)?;
                queue::NewJob::new(spec, asked.args.clone())
            }
            None if asked.allow_unknown_kind => {
                if OURS.iter().any(|ours| kind.as_str().starts_with(ours)) {
                    return Err(not_public(&kind, at));
                }
                if !caller.may(Permission::JobsOperate) {
                    let needed = Permission::JobsOperate;
                    let detail = format!(
                        "A kind that the API does not know needs the permission {needed}, which this key does not give: \
                         use a key that does, or a kind of `GET /v1/kinds`."
                    );
                    return Err(Failure::new(Code::PermissionDenied, detail));
                }
                check_size(asked, at)?;
                of_unknown_kind(kind, asked.args.clone())
            }
            None => return Err(self.unknown_kind(&kind, at)),
        };
        if let Some(name) = &asked.queue {
            job.queue = QueueName::new(name.as_str()).map_err(|error| named("queue", error))?;
        }
        let out_of_bounds = |field: &str, rule: &str| Failure::field(format!("{at}/{field}"), rule);
        if let Some(priority) = asked.priority {
            job.priority =
                i16::try_from(priority).map_err(|_| out_of_bounds("priority", "must be between -100 and 100"))?;
        }
        if let Some(max_attempts) = asked.max_attempts {
            job.max_attempts =
                i32::try_from(max_attempts).map_err(|_| out_of_bounds("max_attempts", "must be between 1 and 1000"))?;
        }
        if let Some(deadline_ms) = asked.deadline_ms {
            let millis = u64::try_from(deadline_ms)
                .map_err(|_| out_of_bounds("deadline_ms", "must be between 1 ms and 366 days"))?;
            job.deadline = Some(Duration::from_millis(millis));
        }
        job.run_at = asked.run_at;
        job.tags.clone_from(&asked.tags);
        job.unique_key.clone_from(&asked.unique_key);
        job.concurrency_key.clone_from(&asked.concurrency_key);
        job.traceparent = traceparent.map(str::to_owned);
        match job.check() {
            Ok(()) => Ok(job),
            Err(queue::Error::Invalid { field, rule }) => {
                Err(Failure::field(format!("{at}/{}", super::failure::wire_name(field)), rule))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Judges a job that is to run once more, by what its kind asks for today.
    ///
    /// # Errors
    /// `kind_not_public`, or `validation_failed` where the kind takes such arguments no longer.
    pub fn admit_again(&self, job: &queue::Job) -> Result<(), Failure> {
        match self.kinds.get(&job.kind) {
            // A protected job is refused by its state, with the verb that begins it anew.
            Some((spec, _)) if !spec.public && !spec.protected => Err(not_public(&job.kind, "")),
            Some((_, validator)) => check_args(validator, &job.args, ""),
            None if OURS.iter().any(|ours| job.kind.as_str().starts_with(ours)) => Err(not_public(&job.kind, "")),
            None => Ok(()),
        }
    }

    /// Refuses a kind that this program does not know, in the address of a request.
    ///
    /// # Errors
    /// `unknown_kind`.
    pub fn check_kind(&self, kind: &Kind) -> Result<(), Failure> {
        if self.kinds.contains_key(kind) {
            return Ok(());
        }
        let known: Vec<&str> = self.iter().map(|spec| spec.kind.as_str()).collect();
        let detail = format!("There is no kind {kind}. Known: {}.", known.join(", "));
        let advice = "is not known: correct it; one that only newer workers know takes \"allow_unknown_kind\": true";
        let error = FieldError { pointer: None, parameter: Some("kind".to_owned()), detail: advice.to_owned() };
        Err(Failure::new(Code::UnknownKind, detail).with_errors(vec![error]))
    }

    fn unknown_kind(&self, kind: &Kind, at: &str) -> Failure {
        let known: Vec<&str> = self.iter().filter(|spec| spec.public).map(|spec| spec.kind.as_str()).collect();
        let detail = format!(
            "There is no kind {kind}. Known: {}.",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        );
        Failure::new(Code::UnknownKind, detail).with_errors(vec![error(format!("{at}/kind"), "is not known")])
    }
}

fn not_public(kind: &Kind, at: &str) -> Failure {
    let detail = format!(
        "Jobs of the kind {kind} are enqueued by the verbs of what they work on, never by callers; `GET /v1/kinds` says \
         which kinds are open."
    );
    Failure::new(Code::KindNotPublic, detail).with_errors(vec![error(format!("{at}/kind"), "is not open to callers")])
}

fn of_unknown_kind(kind: Kind, args: serde_json::Value) -> queue::NewJob {
    queue::NewJob {
        id: JobId::generate(),
        kind,
        queue: QueueName::new("default").expect("a constant name"),
        args,
        priority: 0,
        run_at: None,
        max_attempts: 20,
        max_interruptions: 20,
        deadline: Some(policy::DEFAULT_DEADLINE),
        protected: false,
        tags: Vec::new(),
        unique_key: None,
        concurrency_key: None,
        traceparent: None,
    }
}

/// Asked before the schema is: no time is spent on arguments that are refused anyway.
fn check_size(asked: &wire::NewJob, at: &str) -> Result<(), Failure> {
    let size = asked.args.to_string().len();
    if size <= policy::MAX_PAYLOAD_BYTES {
        return Ok(());
    }
    let limit = policy::MAX_PAYLOAD_BYTES;
    let detail = format!(
        "The arguments are {size} bytes, more than the {limit} that a job may carry: store the data elsewhere and pass \
         its address."
    );
    let errors = vec![error(format!("{at}/args"), format!("at most {limit} bytes of JSON"))];
    Err(Failure::new(Code::PayloadTooLarge, detail).with_errors(errors))
}

fn check_args(validator: &Validator, args: &serde_json::Value, at: &str) -> Result<(), Failure> {
    let mut errors = Vec::new();
    for broken in validator.iter_errors(args).take(MAX_ERRORS) {
        let place = format!("{at}/args{}", broken.instance_path().as_str());
        let mut named = |name: &str, detail: &str| errors.push(error(format!("{place}/{}", escape(name)), detail));
        if let ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } = broken.kind()
        {
            unexpected.iter().for_each(|name| named(name, "is not a field of this kind"));
        } else if let ValidationErrorKind::Required { property } = broken.kind() {
            named(property.as_str().unwrap_or_default(), "is required");
        } else {
            errors.push(error(place, broken.to_string()));
        }
    }
    errors.truncate(MAX_ERRORS);
    if errors.is_empty() { Ok(()) } else { Err(Failure::fields(errors)) }
}

fn error(pointer: String, detail: impl Into<String>) -> FieldError {
    FieldError { pointer: Some(pointer), parameter: None, detail: detail.into() }
}
