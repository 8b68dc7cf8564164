//! Sealed values of an instance's environment: what a tenant tells its child and nobody else.
//!
//! A value that begins with `age:` is an age file (age-encryption.org/v1) in base64, on one line: an environment file has a
//! line for each value, which ASCII armor has not. The tenant seals it to the recipients of the boxes that are to run the
//! instance. Whoever has no key keeps and shows the sealed text, and can say whether it is one; only a box opens it. Pure.
//!
//! # Deliberately absent
//! Passphrases: no box could open them. Which recipients a text is sealed to: age does not tell that to who has no key.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::str::FromStr;
use std::sync::Arc;

use age::x25519;
use age::{Decryptor, Encryptor};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

/// How every sealed value begins. No other value may.
pub const PREFIX: &str = "age:";
/// Most identities of one key file.
pub const MAX_KEYS: usize = 8;
/// The authentication tag of the last chunk, bytes: no age file's payload is shorter.
const TAG_BYTES: usize = 16;

/// Whether a value is sealed, or says that it is.
#[must_use]
pub fn is_sealed(value: &str) -> bool {
    value.starts_with(PREFIX)
}

/// Whether an environment has a sealed value.
#[must_use]
pub fn any(env: &BTreeMap<String, String>) -> bool {
    env.values().any(|value| is_sealed(value))
}

/// A text that begins as a sealed value and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not age: and the base64, on one line, of an age file that is sealed to recipients (age1…)")]
pub struct Malformed;

/// Whether a value that [`is_sealed`] is whole, as far as one can say without a key.
///
/// # Errors
/// [`Malformed`].
pub fn check(value: &str) -> Result<(), Malformed> {
    let file = file_of(value)?;
    let mut payload = file.as_slice();
    let decryptor = Decryptor::new_buffered(&mut payload).map_err(|_| Malformed)?;
    if decryptor.is_scrypt() || payload.len() < TAG_BYTES { Err(Malformed) } else { Ok(()) }
}

fn file_of(value: &str) -> Result<Vec<u8>, Malformed> {
    let text = value.strip_prefix(PREFIX).ok_or(Malformed)?;
    STANDARD.decode(text).map_err(|_| Malformed)
}

/// Whom a value can be sealed to: the public half of a box's key, `age1…`.
#[derive(Debug, Clone)]
pub struct Recipient(x25519::Recipient);

impl FromStr for Recipient {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "must be a recipient of age, age1 and 58 characters")
    }
}

/// Seals a value to recipients, each of whom opens it alone.
///
/// # Panics
/// Without a recipient: the value would be lost.
#[must_use]
pub fn seal(recipients: &[Recipient], plain: &SecretString) -> String {
    let each = recipients.iter().map(|recipient| &recipient.0 as &dyn age::Recipient);
    let encryptor = Encryptor::with_recipients(each).expect("one recipient or more, all of one kind");
    let mut file = Vec::new();
    let written = encryptor.wrap_output(&mut file).and_then(|mut writer| {
        writer.write_all(plain.expose_secret().as_bytes())?;
        writer.finish().map(drop)
    });
    written.expect("memory takes every byte");
    format!("{PREFIX}{}", STANDARD.encode(file))
}

/// The identities of a box. Printed as their recipients.
#[derive(Clone)]
pub struct Keys(Arc<Vec<x25519::Identity>>);

/// Why a text holds no identities. Nothing of it is quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoKeys {
    /// A line is neither empty, a comment nor an identity.
    #[error("line {0} is not an identity of age (AGE-SECRET-KEY-1…)")]
    Line(usize),
    /// Nothing but comments.
    #[error("it holds no identity of age (AGE-SECRET-KEY-1…)")]
    Empty,
    /// Every value would be tried with each.
    #[error("it holds more than {MAX_KEYS} identities")]
    TooMany,
}

impl Keys {
    /// Reads what `age-keygen` writes: an identity a line; empty lines and those that begin with # say nothing.
    ///
    /// # Errors
    /// [`NoKeys`].
    pub fn parse(text: &str) -> Result<Self, NoKeys> {
        // Never moved: an identity wipes the place where it ends, and no other.
        let mut found = Vec::with_capacity(MAX_KEYS);
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let identity = line.parse::<x25519::Identity>().map_err(|_| NoKeys::Line(index + 1))?;
            if found.len() == MAX_KEYS {
                return Err(NoKeys::TooMany);
            }
            found.push(identity);
        }
        if found.is_empty() { Err(NoKeys::Empty) } else { Ok(Self(Arc::new(found))) }
    }

    /// Whom tenants seal to, one for each identity.
    #[must_use]
    pub fn recipients(&self) -> Vec<String> {
        self.0.iter().map(|identity| identity.to_public().to_string()).collect()
    }

    fn open(&self, value: &str) -> Result<SecretString, Fault> {
        let file = file_of(value).map_err(|_| Fault::Malformed)?;
        let decryptor = Decryptor::new_buffered(file.as_slice()).map_err(|_| Fault::Malformed)?;
        let mine = self.0.iter().map(|identity| identity as &dyn age::Identity);
        let mut plain = match decryptor.decrypt(mine) {
            Ok(plain) => plain,
            Err(age::DecryptError::NoMatchingKeys) => return Err(Fault::OthersKey),
            Err(_) => return Err(Fault::Damaged),
        };
        // All its room at once, and wiped: one that grew would leave a copy of the value at each place that it had.
        let mut bytes = Zeroizing::new(Vec::with_capacity(file.len()));
        plain.read_to_end(&mut bytes).map_err(|_| Fault::Damaged)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) if !text.contains('\0') => Ok(text.into()),
            Ok(_) | Err(_) => Err(Fault::NotText),
        }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keys").field(&self.recipients()).finish()
    }
}

/// Why one value does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The box was given none.
    #[error("this box holds no key (node.config_key)")]
    NoKey,
    /// It holds one, and the value is sealed to others.
    #[error("it is sealed to none of this box's keys")]
    OthersKey,
    /// Its key fits, and what it closes was changed or cut.
    #[error("its text is damaged")]
    Damaged,
    /// It is no age file.
    #[error("it is {Malformed}")]
    Malformed,
    /// No variable of a process can hold it.
    #[error("what it holds is not UTF-8 text without NUL")]
    NotText,
}

/// The first value of an environment that does not open, and why. Nothing of the value is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sealed value of {name} does not open: {fault}")]
pub struct Unopened {
    /// The variable.
    pub name: String,
    /// Why.
    pub fault: Fault,
}

/// An environment in plain, for a child and for nothing else. Without a sealed value no key is needed.
///
/// # Errors
/// [`Unopened`]: then nothing of it may be used.
pub fn open(env: &BTreeMap<String, String>, keys: Option<&Keys>) -> Result<BTreeMap<String, SecretString>, Unopened> {
    let opened = env.iter().map(|(name, value)| {
        let plain = match keys {
            _ if !is_sealed(value) => Ok(SecretString::from(value.as_str())),
            Some(keys) => keys.open(value),
            None => Err(Fault::NoKey),
        };
        plain.map(|plain| (name.clone(), plain)).map_err(|fault| Unopened { name: name.clone(), fault })
    });
    opened.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> (Keys, Recipient) {
        let identity = x25519::Identity::generate();
        let text = identity.to_string();
        let keys = Keys::parse(&format!("# created: today\n\n{}\n", text.expose_secret())).unwrap();
        (keys, Recipient(identity.to_public()))
    }

    fn env(value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("KEY".to_owned(), value.to_owned()), ("PLAIN".to_owned(), "a b".to_owned())])
    }

    fn fault(env: &BTreeMap<String, String>, keys: Option<&Keys>) -> Fault {
        let unopened = open(env, keys).expect_err("it does not open");
        assert_eq!(unopened.name, "KEY");
        unopened.fault
    }

    #[test]
    fn each_recipient_opens_what_was_sealed_to_both_and_nobody_else_does() {
        let ((first, to_first), (second, to_second), (third, _)) = (identity(), identity(), identity());
        let sealed = seal(&[to_first, to_second], &"hunter2".into());
        assert!(is_sealed(&sealed) && check(&sealed).is_ok() && !sealed.contains('\n'));
        let env = env(&sealed);
        for keys in [&first, &second] {
            let opened = open(&env, Some(keys)).unwrap();
            assert_eq!(opened["KEY"].expose_secret(), "hunter2");
            assert_eq!(opened["PLAIN"].expose_secret(), "a b", "and what is not sealed stays as it is");
        }
        assert_eq!(fault(&env, Some(&third)), Fault::OthersKey);
        assert_eq!(fault(&env, None), Fault::NoKey);
        let plain = BTreeMap::from([("PLAIN".to_owned(), "a b".to_owned())]);
        assert!(open(&plain, None).is_ok(), "nothing sealed needs no key");
    }

    #[test]
    fn an_empty_value_is_sealed_and_opened_too() {
        let (keys, to) = identity();
        let sealed = seal(&[to], &"".into());
        assert!(check(&sealed).is_ok());
        assert_eq!(open(&env(&sealed), Some(&keys)).unwrap()["KEY"].expose_secret(), "");
    }

    #[test]
    fn a_text_that_is_no_sealed_value_is_refused_without_a_key() {
        let (_, to) = identity();
        let sealed = seal(&[to], &"hunter2".into());
        let file = file_of(&sealed).unwrap();
        let of = |bytes: &[u8]| format!("{PREFIX}{}", STANDARD.encode(bytes));
        let passphrase = Encryptor::with_recipients(
            [&age::scrypt::Recipient::new("of a person".into()) as &dyn age::Recipient].into_iter(),
        )
        .unwrap();
        let mut of_a_person = Vec::new();
        passphrase.wrap_output(&mut of_a_person).unwrap().finish().unwrap();
        let cut_within_the_tag = &file[..file.len() - b"hunter2".len() - 1];
        for bad in [
            "age:".to_owned(),
            "age:42".to_owned(),
            "age:not base64".to_owned(),
            of(b"hunter2"),
            of(&file[..40]),
            of(cut_within_the_tag),
            sealed.replace("age:", "age: "),
            format!("{sealed}\n"),
            of(&of_a_person),
        ] {
            assert_eq!(check(&bad), Err(Malformed), "{bad}");
        }
        assert!(!is_sealed("AGE:42") && !is_sealed("page:42"));
    }

    #[test]
    fn a_value_that_was_changed_or_is_no_text_is_told_as_such() {
        let (keys, to) = identity();
        let file = file_of(&seal(std::slice::from_ref(&to), &"hunter2".into())).unwrap();
        let mut changed = file.clone();
        *changed.last_mut().unwrap() ^= 1;
        let of = |bytes: &[u8]| env(&format!("{PREFIX}{}", STANDARD.encode(bytes)));
        assert_eq!(fault(&of(&changed), Some(&keys)), Fault::Damaged);
        assert_eq!(fault(&of(&file[..file.len() - 1]), Some(&keys)), Fault::Damaged);
        assert_eq!(fault(&of(b"hunter2"), Some(&keys)), Fault::Malformed);
        assert_eq!(fault(&env(&seal(std::slice::from_ref(&to), &"a\0b".into())), Some(&keys)), Fault::NotText);
        let bytes = age::encrypt(&to.0, &[0xff, 0xfe]).unwrap();
        assert_eq!(fault(&of(&bytes), Some(&keys)), Fault::NotText);
    }

    #[test]
    fn a_key_file_is_refused_by_its_line_and_nothing_of_it_is_printed() {
        let secret = x25519::Identity::generate().to_string();
        let secret = secret.expose_secret();
        let (line, cut) = (format!("{secret}\n"), &secret[..40]);
        assert_eq!(Keys::parse("# nothing\n\n").unwrap_err(), NoKeys::Empty);
        assert_eq!(Keys::parse(&format!("{line}{cut}")).unwrap_err(), NoKeys::Line(2));
        assert_eq!(Keys::parse(&line.repeat(MAX_KEYS + 1)).unwrap_err(), NoKeys::TooMany);
        let keys = Keys::parse(&line.repeat(MAX_KEYS)).unwrap();
        let printed = format!("{keys:?}");
        assert!(printed.contains("age1") && !printed.contains(&secret[20..]), "{printed}");
        assert!(!NoKeys::Line(2).to_string().contains(cut));
    }
}
