//! Faults on demand, hooks before an operation, and a record of every call.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::hold::{Gate, Hold};

/// How many calls the record holds; a server that runs for days forgets the oldest.
const MAX_RECORDED: usize = 200_000;

/// One call of a client, before anything was decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The operation's name as S3 has it: `CopyObject`, `ListObjectsV2`.
    pub op: &'static str,
    /// The bucket; empty for `ListBuckets`.
    pub bucket: String,
    /// The key; the prefix for a listing; empty for `DeleteObjects`, whose keys are in `keys`.
    pub key: String,
    /// Bucket and key of a copy's source.
    pub source: Option<(String, String)>,
    /// The keys of a `DeleteObjects`.
    pub keys: Vec<String>,
    /// Who asked; empty for nobody.
    pub access_key: String,
}

impl Call {
    /// Whether its key, its prefix or its source's key contains `part`.
    #[must_use]
    pub fn mentions(&self, part: &str) -> bool {
        self.key.contains(part)
            || self.source.as_ref().is_some_and(|(_, key)| key.contains(part))
            || self.keys.iter().any(|key| key.contains(part))
    }
}

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The operation begins this much later. Further rules apply as well.
    Latency(Duration),
    /// 503 `SlowDown`: nothing is done.
    SlowDown,
    /// An error with this S3 code (`InternalError`, `AccessDenied`, `PreconditionFailed`,
    /// `NoSuchKey`…) and the status that belongs to it: nothing is done.
    Answer(&'static str),
    /// Status 200 with an error of this code as its body, as S3 does when a copy or a completion
    /// fails after the status line was sent: nothing is done.
    ErrorInBody(&'static str),
    /// No answer, ever: nothing is done.
    Hang,
    /// The connection is closed without an answer: nothing is done.
    Disconnect,
    /// The operation is done and the connection closed without an answer.
    LostAnswer,
    /// The key (the source's, for a copy) is deleted just before, as a source prunes it between a
    /// listing and a copy.
    Vanish,
    /// A listing's page says that there is more, and gives no token to go on with.
    LostToken,
    /// A listing's page comes without its keys; the next page follows as ever.
    LostPage,
    /// `DeleteObjects` answers 200 and reports this code for each key that the rule matches; those
    /// keys stay.
    KeyError(&'static str),
    /// Held until released: see [`Faults::hold`].
    Hold(Gate),
}

/// When a fault strikes: an operation, a part of a key, how often.
#[derive(Debug, Clone)]
pub struct Rule {
    op: Option<&'static str>,
    bucket: Option<String>,
    key: Option<String>,
    skip: u64,
    times: Option<u64>,
    probability: f64,
    fault: Fault,
}

impl Rule {
    /// `fault` strikes every call of `op` (`"*"`: of any).
    #[must_use]
    pub fn on(op: &'static str, fault: Fault) -> Self {
        let op = (op != "*").then_some(op);
        Self { op, bucket: None, key: None, skip: 0, times: None, probability: 1.0, fault }
    }

    /// Only calls to this bucket.
    #[must_use]
    pub fn bucket(mut self, name: impl Into<String>) -> Self {
        self.bucket = Some(name.into());
        self
    }

    /// Only calls whose key, prefix or source key contains `part`.
    #[must_use]
    pub fn key(mut self, part: impl Into<String>) -> Self {
        self.key = Some(part.into());
        self
    }

    /// Only after this many matching calls have passed.
    #[must_use]
    pub fn after(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// Only this many times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Only with this probability (0 to 1) each time; see [`Faults::seed`].
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    fn is_about(&self, call: &Call) -> bool {
        self.op.is_none_or(|op| op == call.op)
            && self.bucket.as_ref().is_none_or(|bucket| *bucket == call.bucket)
            && self.key.as_ref().is_none_or(|part| call.mentions(part))
    }

    /// Counts this call and says whether the fault strikes it.
    fn strikes(&mut self, random: &mut fastrand::Rng) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.times == Some(0) || (self.probability < 1.0 && random.f64() >= self.probability) {
            return false;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}

/// The number of a rule, to remove it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

type Hook = Arc<dyn Fn(&Call) + Send + Sync>;

#[derive(Default)]
struct State {
    rules: Vec<(RuleId, Rule)>,
    next: u64,
    hooks: Vec<(&'static str, Hook)>,
    random: Option<fastrand::Rng>,
    counts: BTreeMap<&'static str, u64>,
    record: VecDeque<Call>,
}

/// The faults, hooks and records of one server. Clones are the same.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    bytes_in: Arc<AtomicU64>,
    bytes_out: Arc<AtomicU64>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("rules", &self.lock().rules).finish_non_exhaustive()
    }
}

impl Faults {
    /// Adds a rule. Where several match a call, the first that ends it wins.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.lock();
        state.next += 1;
        let id = RuleId(state.next);
        state.rules.push((id, rule));
        id
    }

    /// Removes one rule.
    pub fn remove(&self, id: RuleId) {
        self.lock().rules.retain(|(other, _)| *other != id);
    }

    /// Removes all rules and hooks; the record stays.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.rules.clear();
        state.hooks.clear();
    }

    /// Makes the draws of [`Rule::probability`] repeatable. Without it they begin at seed 0.
    pub fn seed(&self, seed: u64) {
        self.lock().random = Some(fastrand::Rng::with_seed(seed));
    }

    /// Runs `hook` before every call of `op` (`"*"`: of any), on the server's own thread: it may
    /// change objects through [`super::Objects`], and must not wait for an answer of this server.
    pub fn on(&self, op: &'static str, hook: impl Fn(&Call) + Send + Sync + 'static) {
        self.lock().hooks.push((op, Arc::new(hook)));
    }

    /// Holds the next call of `op` whose key contains `part` until the returned handle releases it
    /// or is dropped: for tests that do something at exactly that point.
    pub fn hold(&self, op: &'static str, part: &str) -> Hold {
        let (gate, hold) = Gate::new();
        self.add(Rule::on(op, Fault::Hold(gate)).key(part).times(1));
        hold
    }

    /// How many calls of `op` there were, refused ones included.
    #[must_use]
    pub fn calls(&self, op: &str) -> u64 {
        self.lock().counts.get(op).copied().unwrap_or(0)
    }

    /// How many calls there were, by operation.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    /// Every call, in order of arrival.
    #[must_use]
    pub fn record(&self) -> Vec<Call> {
        self.lock().record.iter().cloned().collect()
    }

    /// Object bytes that clients sent (`PutObject`, `UploadPart`).
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }

    /// Object bytes that clients were sent (`GetObject`).
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out.load(Ordering::Relaxed)
    }

    /// Begins the record, the counts and the byte counts anew.
    pub fn reset_record(&self) {
        let mut state = self.lock();
        state.record.clear();
        state.counts.clear();
        self.bytes_in.store(0, Ordering::Relaxed);
        self.bytes_out.store(0, Ordering::Relaxed);
    }

    pub(super) fn count_in(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_out(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records the call.
    pub(super) fn note(&self, call: &Call) {
        let mut state = self.lock();
        *state.counts.entry(call.op).or_default() += 1;
        if state.record.len() == MAX_RECORDED {
            state.record.pop_front();
        }
        state.record.push_back(call.clone());
    }

    /// Runs the hooks for a call.
    pub(super) fn run_hooks(&self, call: &Call) {
        let hooks: Vec<Hook> = {
            let state = self.lock();
            let wanted = state.hooks.iter().filter(|(op, _)| *op == "*" || *op == call.op);
            wanted.map(|(_, hook)| Arc::clone(hook)).collect()
        };
        // Without the lock: a hook may add rules.
        for hook in hooks {
            hook(call);
        }
    }

    /// The faults that strike a call, in order. Those for single keys are asked for by [`Faults::key_error`].
    pub(super) fn strike(&self, call: &Call) -> Vec<Fault> {
        let mut guard = self.lock();
        let State { rules, random, .. } = &mut *guard;
        let random = random.get_or_insert_with(|| fastrand::Rng::with_seed(0));
        rules
            .iter_mut()
            .filter(|(_, rule)| !matches!(rule.fault, Fault::KeyError(_)) && rule.is_about(call))
            .filter_map(|(_, rule)| rule.strikes(random).then(|| rule.fault.clone()))
            .collect()
    }

    /// The code with which `DeleteObjects` shall refuse this one key.
    pub(super) fn key_error(&self, bucket: &str, key: &str) -> Option<&'static str> {
        let call = Call {
            op: "DeleteObjects",
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            source: None,
            keys: Vec::new(),
            access_key: String::new(),
        };
        let mut guard = self.lock();
        let State { rules, random, .. } = &mut *guard;
        let random = random.get_or_insert_with(|| fastrand::Rng::with_seed(0));
        rules.iter_mut().find_map(|(_, rule)| {
            let Fault::KeyError(code) = rule.fault else { return None };
            (rule.is_about(&call) && rule.strikes(random)).then_some(code)
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: &'static str, key: &str) -> Call {
        Call {
            op,
            bucket: "b".to_owned(),
            key: key.to_owned(),
            source: None,
            keys: Vec::new(),
            access_key: String::new(),
        }
    }

    #[test]
    fn a_rule_strikes_its_calls_after_and_as_often_as_it_says() {
        let faults = Faults::default();
        faults.add(Rule::on("CopyObject", Fault::SlowDown).key("0009/").after(1).times(2));
        let hits: Vec<bool> = (0..5).map(|_| !faults.strike(&call("CopyObject", "h/0009/x")).is_empty()).collect();
        assert_eq!(hits, [false, true, true, false, false]);
        assert!(faults.strike(&call("CopyObject", "h/0008/x")).is_empty());
        assert!(faults.strike(&call("PutObject", "h/0009/x")).is_empty());
    }

    #[test]
    fn draws_repeat_under_one_seed() {
        let run = || -> Vec<bool> {
            let faults = Faults::default();
            faults.seed(7);
            faults.add(Rule::on("*", Fault::SlowDown).probability(0.5));
            (0..64).map(|_| !faults.strike(&call("PutObject", "k")).is_empty()).collect()
        };
        assert_eq!(run(), run());
        assert!(run().contains(&true) && run().contains(&false));
    }
}
