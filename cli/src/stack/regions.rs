//! The two regions of the sandbox, their buckets, and who may do what in them.

use sandbox::s3::Identity;

/// A region of the sandbox with its box.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// The region's code.
    pub(crate) code: &'static str,
    /// The region's name.
    pub(crate) name: &'static str,
    /// Its data bucket.
    pub(crate) bucket: &'static str,
    /// The object store's own name for its place.
    pub(crate) bucket_region: &'static str,
    /// Its box.
    pub(crate) node: &'static str,
}

/// Where instances begin.
pub(crate) const EU: Site =
    Site { code: "eu", name: "Europe", bucket: "leasehold-eu", bucket_region: "eu-central-1", node: "box-eu-1" };

/// Where they move to.
pub(crate) const UK: Site =
    Site { code: "uk", name: "United Kingdom", bucket: "leasehold-uk", bucket_region: "eu-west-2", node: "box-uk-1" };

/// Both.
pub(crate) const SITES: [Site; 2] = [EU, UK];

impl Site {
    /// The key of this region's box: what it needs of its own bucket to land, cut and purge, and for a move the staging of the
    /// other region, to write and list. Nothing else, as in production.
    pub(crate) fn box_key(self) -> Identity {
        let own = |action: &str, prefix: &str| format!("{action}:{}/{prefix}/*", self.bucket);
        let mut actions = Vec::new();
        for prefix in ["instances", "moves"] {
            actions.extend(["Read", "Write", "List"].map(|action| own(action, prefix)));
        }
        for other in SITES.iter().filter(|other| other.code != self.code) {
            actions.push(format!("Write:{}/moves/*", other.bucket));
            actions.push(format!("List:{}/moves/*", other.bucket));
        }
        drawn(self.node, &actions)
    }

    /// The key of a tenant's litestream: its own prefix in this region.
    pub(crate) fn tenant_key(self, host: &str) -> Identity {
        let actions = ["Read", "Write", "List"].map(|action| format!("{action}:{}/instances/{host}/*", self.bucket));
        drawn("tenant", &actions)
    }
}

/// A key pair drawn afresh: it lives as long as the server in this process.
fn drawn(name: &str, actions: &[String]) -> Identity {
    let access_key = format!("LH{}", hex::encode(domain::entropy::bytes::<8>()).to_uppercase());
    let secret_key = hex::encode(domain::entropy::bytes::<20>());
    Identity::limited(name, &access_key, &secret_key, actions.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use sandbox::s3::Action;

    use super::*;

    #[test]
    fn a_box_cannot_touch_what_is_not_its_business() {
        let key = EU.box_key();
        assert!(key.allows(Action::Read, "leasehold-eu/instances/h/0000/x"));
        assert!(key.allows(Action::Write, "leasehold-uk/moves/h/0000/x"));
        for (action, path) in [
            (Action::Write, "leasehold-eu/uploads/h/x"),
            (Action::Read, "leasehold-uk/moves/h/0000/x"),
            (Action::Read, "leasehold-uk/instances/h/0000/x"),
            (Action::Write, "leasehold-uk/instances/h/0000/x"),
        ] {
            assert!(!key.allows(action, path), "{action:?} {path}");
        }
    }
}
