//! The one way by which a child starts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use domain::ids::Host;
use domain::instances::sealed;
use secrecy::ExposeSecret as _;

use super::process::{self, Detached, Life, POLL};
use super::record::Record;
use super::{Activator, Error, Identity, Role};

/// How long one connection to a child on this machine may take.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// A child that runs and accepts connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Where it listens.
    pub address: SocketAddr,
    /// Which process it is.
    pub identity: Identity,
    /// Whether it ran already.
    pub ran: bool,
}

/// What a child is started with.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The tenant's own environment.
    pub env: &'a BTreeMap<String, String>,
    /// How often a new start was asked for.
    pub restarts: i64,
}

impl Activator {
    /// Starts the child of a host, whoever asks, and returns when it accepts connections. litestream runs before it, so
    /// that it sees the first write.
    ///
    /// `permit` is asked inside the host's mutex, after whatever held it has ended; without its `true` nothing starts.
    /// A child that runs already is left alone, and waited for. Where the database is gone and its replica is not, nothing
    /// starts: see [`Error::Lost`].
    ///
    /// The child's environment: the box's few basic names, the tenant's own, whose sealed values are opened here and nowhere
    /// written, and, above both, `CARLOS_REGION`,
    /// `LEASEHOLD_HOST`, `LEASEHOLD_DATABASE` and `LEASEHOLD_LISTEN` (M-101).
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::NoProgram`]; [`Error::ConfigKey`]; [`Error::Exited`] and [`Error::NotReady`] with the end of its log.
    pub async fn start<F>(&self, host: &Host, launch: Launch<'_>, permit: F) -> Result<Started, Error>
    where
        F: Future<Output = Result<bool, anyhow::Error>>,
    {
        let Launch { env, restarts } = launch;
        let _mutex = self.lock(host).await;
        match permit.await {
            Ok(true) => {}
            Ok(false) => return Err(Error::NotPermitted { host: host.clone() }),
            Err(error) => return Err(Error::Permit { host: host.clone(), source: error.into() }),
        }
        let Some(program) = &self.inner.exec else { return Err(Error::NoProgram { host: host.clone() }) };
        let files = self.files(host);
        files.make()?;
        let life = self.look(host)?;
        let ran = matches!(life, Life::Lives(_));
        match life {
            Life::Gone => {}
            Life::Lives(_) => self.litestream(host, &files).replicate().await?,
            // Two generations of one program on one database: the older one has to go first.
            Life::Lingers(pid) => return Err(Error::Runs { host: host.clone(), role: Role::Child, pid }),
        }
        if !ran {
            let environment = self.environment(host, env)?;
            self.refuse_lost(host).await?;
            self.litestream(host, &files).replicate().await?;
            crate::failpoint::hit("activator.before_child", host.as_str()).await;
            // Before the child is there: one whose worker dies meanwhile counts as a child of this start.
            files.write_restarts(restarts)?;
            let address =
                free_address(&self.addresses_of_others(host)?).map_err(|source| self.launch_error(host, source))?;
            let detached = Detached {
                launcher: &self.inner.settings.launcher,
                record: &files.child(),
                note: &address.to_string(),
                program,
                args: self.inner.settings.exec.iter().flatten().skip(1).cloned().collect(),
                environment: self.own_names(host, environment, address),
                folder: &files.folder,
                log: &files.child_log(),
            };
            let record = detached.start(&self.inner.exits).await.map_err(|source| self.launch_error(host, source))?;
            crate::failpoint::hit("activator.after_child", host.as_str()).await;
            tracing::info!(host = %host, pid = record.identity.pid, address = %address, "a child is started");
        }
        self.until_accepting(host, ran).await
    }

    /// Refuses where the replica holds something and there is no database: the child would begin with nothing, and litestream
    /// would replicate that over what is there. Only a complete and empty listing means that there is none (M-129).
    async fn refuse_lost(&self, host: &Host) -> Result<(), Error> {
        if self.has_database(host)? {
            return Ok(());
        }
        let own = &self.inner.own;
        let listed = own.store.list(&own.bucket, &format!("instances/{host}/")).next_page().await;
        match listed {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(Error::Lost { host: host.clone() }),
            Err(source) => Err(Error::Listing { host: host.clone(), source }),
        }
    }

    async fn until_accepting(&self, host: &Host, ran: bool) -> Result<Started, Error> {
        let limit = self.inner.settings.start_limit;
        let deadline = Instant::now() + limit;
        let (log, role) = (self.files(host).child_log(), Role::Child);
        loop {
            let Life::Lives(record) = self.look(host)? else {
                return Err(Error::Exited { host: host.clone(), role, tail: process::tail(&log), log });
            };
            let address: SocketAddr =
                record.note.parse().map_err(|_| self.launch_error(host, std::io::Error::other("no address")))?;
            let accepts = tokio::task::spawn_blocking(move || TcpStream::connect_timeout(&address, CONNECT_LIMIT));
            if matches!(accepts.await, Ok(Ok(_))) {
                return Ok(Started { address, identity: record.identity, ran });
            }
            if Instant::now() >= deadline {
                return Err(Error::NotReady { host: host.clone(), role, limit, tail: process::tail(&log), log });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The box's few names and the tenant's own, in plain.
    fn environment(&self, host: &Host, env: &BTreeMap<String, String>) -> Result<BTreeMap<OsString, OsString>, Error> {
        let opened = sealed::open(env, self.config_key());
        let opened = opened.map_err(|source| Error::ConfigKey { host: host.clone(), source })?;
        let mut environment = self.inner.settings.environment.clone();
        for (name, value) in opened {
            let value = value.expose_secret();
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(Error::Environment { host: host.clone(), name });
            }
            environment.insert(name.into(), value.into());
        }
        Ok(environment)
    }

    /// What the tenant can neither set nor unset.
    fn own_names(
        &self,
        host: &Host,
        mut environment: BTreeMap<OsString, OsString>,
        address: SocketAddr,
    ) -> BTreeMap<OsString, OsString> {
        environment.insert("CARLOS_REGION".into(), self.inner.settings.region.as_str().into());
        environment.insert("LEASEHOLD_HOST".into(), host.as_str().into());
        environment.insert("LEASEHOLD_DATABASE".into(), self.files(host).database().into());
        environment.insert("LEASEHOLD_LISTEN".into(), address.to_string().into());
        environment
    }

    /// The addresses that children of other hosts have or had last: an edge that has not heard of an end yet would send one
    /// tenant's requests to another.
    fn addresses_of_others(&self, host: &Host) -> Result<BTreeSet<String>, Error> {
        let mut taken = BTreeSet::new();
        for other in self.hosts()?.into_iter().filter(|other| other != host) {
            // One that cannot be read holds up no other host's child.
            if let Ok(Some(record)) = Record::read(&self.files(&other).child()) {
                taken.insert(record.note);
            }
        }
        Ok(taken)
    }

    fn launch_error(&self, host: &Host, source: std::io::Error) -> Error {
        Error::Launch { host: host.clone(), role: Role::Child, source }
    }
}

/// An address of this machine that nobody listens on. Somebody may take it before the child does; then the child ends,
/// and its next start gets another. One of `taken` is never given.
fn free_address(taken: &BTreeSet<String>) -> std::io::Result<SocketAddr> {
    first_free(taken, || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    })
}

/// The first address drawn that nobody has. What was drawn is held until then, so that none is drawn twice.
fn first_free<T>(
    taken: &BTreeSet<String>,
    mut draw: impl FnMut() -> std::io::Result<(T, SocketAddr)>,
) -> std::io::Result<SocketAddr> {
    let mut held = Vec::new();
    for _ in 0..=taken.len() {
        let (listener, address) = draw()?;
        if !taken.contains(&address.to_string()) {
            return Ok(address);
        }
        held.push(listener);
    }
    Err(std::io::Error::other("every address is another child's"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_another_hosts_last_child_is_not_given() {
        let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let taken = BTreeSet::from([address(1).to_string(), address(2).to_string()]);
        let mut ports = [1, 2, 3].into_iter();
        let drawn = first_free(&taken, || Ok(((), address(ports.next().unwrap())))).unwrap();
        assert_eq!(drawn, address(3));
    }
}
