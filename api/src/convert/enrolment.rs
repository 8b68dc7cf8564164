use domain::nodes::records::Record;

/// The wire's form of a node's record.
#[must_use]
pub fn node(record: Record) -> wire::Node {
    wire::Node {
        id: record.id.0,
        identity: record.identity,
        region: record.region.into(),
        hostname: record.hostname,
        display_name: record.display_name,
        lifecycle: record.lifecycle,
        enabled: record.enabled,
        generation: record.generation,
        incarnation: record.incarnation,
        created_at: record.created_at,
        seen_at: record.seen_at,
        live: record.live,
        enrolled_at: record.enrolled_at,
        token_expires_at: record.token_expires_at,
    }
}

/// What a machine must know beside its secret.
#[must_use]
pub fn control_plane(config: &crate::Config) -> wire::ControlPlane {
    wire::ControlPlane {
        api_url: config.public_url.clone(),
        certificate_sha256: config.certificate_sha256.clone(),
        // Nothing is signed by the control plane yet, so there is no such key.
        signing_key_id: None,
    }
}
