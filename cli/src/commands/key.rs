//! `leasehold key`

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use secrecy::ExposeSecret as _;
use serde_json::json;
use uuid::Uuid;
use wire::{IdentityKind, KeyScopes, NewIdentity, NewKey, Reason};

use super::Context;
use crate::exit::Exit;
use crate::output::{moment, or_dash, table};
use crate::{database, parse, runtime};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make the first administrator's key, straight in the database; only while there is no administrator
    #[command(after_help = "Example: LEASEHOLD_DATABASE_URL=postgres://… leasehold key bootstrap > admin.key\n\n\
        The key is printed once and kept nowhere. It works until it is revoked.")]
    Bootstrap,
    /// Create a key, for an identity that exists (--identity) or with a new one (--new-identity and --kind)
    #[command(after_help = "Examples:\n  \
        leasehold key create 'acme in production' --new-identity acme --kind app --app acme\n  \
        leasehold key create laptop --new-identity ada --kind person --role operator\n\n\
        The key is printed once and kept nowhere.")]
    Create(Create),
    /// List keys, newest first; never their secrets
    #[command(after_help = "Example: leasehold key list")]
    List(List),
    /// Revoke a key
    #[command(after_help = "Example: leasehold key revoke 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'laptop lost'")]
    Revoke {
        /// The key's id
        #[arg(value_parser = parse::id)]
        id: Uuid,
        /// Why, for the audit trail
        #[arg(long)]
        reason: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["identity", "new_identity"]))]
pub(crate) struct Create {
    /// What the key is for
    name: String,
    /// The identity that it belongs to; --new-identity makes one instead
    #[arg(long, value_name = "ID", value_parser = parse::id, conflicts_with_all = ["kind", "roles"])]
    identity: Option<Uuid>,
    /// An identity to create with it
    #[arg(long, value_name = "NAME", requires = "kind")]
    new_identity: Option<String>,
    /// What the new identity is
    #[arg(long, value_enum, requires = "new_identity")]
    kind: Option<Kind>,
    /// A role of the new identity: viewer, operator or admin; may be repeated
    #[arg(long = "role", value_name = "ROLE", requires = "new_identity")]
    roles: Vec<String>,
    /// Narrows what the key may do to this permission; may be repeated
    #[arg(long = "permission", value_name = "PERMISSION")]
    permissions: Vec<String>,
    /// Narrows what the key may see to this application; may be repeated
    #[arg(long = "app", value_name = "APP")]
    apps: Vec<String>,
    /// Narrows what the key may see to this node; may be repeated
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<String>,
    /// When the key stops working, such as 2027-01-31T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    expires_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Person,
    App,
    Node,
    Instance,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Keys of one page, 1 to 200
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: Option<u16>,
    /// Where the page begins, as the page before said
    #[arg(long)]
    cursor: Option<String>,
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Bootstrap => bootstrap(context)?,
        Command::Create(args) => create(context, args)?,
        Command::List(args) => list(context, &args)?,
        Command::Revoke { id, reason } => {
            let api = context.api()?;
            let reason = Reason { reason };
            let key = runtime::run(api.call_about(&format!("key {id}"), |client| client.revoke_key(id, &reason)))?;
            context.output.show(&key, |key| format!("{}  {} is revoked", key.id, key.name))?;
        }
    }
    Ok(Exit::Ok)
}

fn bootstrap(context: &Context) -> anyhow::Result<()> {
    let settings = context.settings(Vec::new())?;
    let made = runtime::run(async {
        let pool = database::connect(&settings).await?;
        domain::db::check_schema(&pool).await?;
        let mut transaction = domain::db::begin(&pool).await?;
        let made = domain::authority::bootstrap(&mut transaction).await?;
        transaction.commit().await?;
        Ok(made)
    })?;
    // Shown to the one who asked for it, and kept nowhere.
    let key = made.secret.whole().expose_secret();
    context.output.show(&json!({"id": made.id, "identity_id": made.identity, "secret": key}), |_| key.to_owned())
}

fn create(context: &Context, args: Create) -> anyhow::Result<()> {
    let api = context.api()?;
    let set = |items: Vec<String>| (!items.is_empty()).then(|| items.into_iter().collect::<BTreeSet<_>>());
    let identity = args.new_identity.zip(args.kind).map(|(name, kind)| NewIdentity {
        name,
        kind: kind.on_the_wire(),
        roles: args.roles.into_iter().collect(),
    });
    let new = NewKey {
        name: args.name,
        identity_id: args.identity,
        identity,
        permissions: set(args.permissions),
        scopes: KeyScopes { app: set(args.apps), node: set(args.nodes) },
        expires_at: args.expires_at,
    };
    let made = runtime::run(api.call(|client| client.create_key(&new, None)))?.value;
    context.output.show(&made, |made| match &made.secret {
        Some(secret) => secret.expose_secret().to_owned(),
        None => format!("{} was made before; its secret was told then", made.key.id),
    })
}

impl Kind {
    fn on_the_wire(self) -> IdentityKind {
        match self {
            Self::Person => IdentityKind::Person,
            Self::App => IdentityKind::App,
            Self::Node => IdentityKind::Node,
            Self::Instance => IdentityKind::Instance,
        }
    }
}

fn list(context: &Context, args: &List) -> anyhow::Result<()> {
    let api = context.api()?;
    let page = runtime::run(api.call(|client| client.keys(args.limit, args.cursor.as_deref())))?;
    context.output.page(&page, "no keys", |keys| {
        table(
            &["id", "name", "identity", "roles", "created", "expires", "revoked"],
            keys.iter().map(|key| {
                [
                    key.id.to_string(),
                    key.name.clone(),
                    key.identity.clone(),
                    or_dash(&key.roles.join(", ")),
                    moment(Some(key.created_at)),
                    moment(key.expires_at),
                    moment(key.revoked_at),
                ]
            }),
        )
    })
}
