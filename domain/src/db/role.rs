//! Settings that belong to the database role where a pooler keeps them from being a session's.

use sqlx::PgPool;

use super::{IDLE_IN_TRANSACTION_TIMEOUT, LOCK_TIMEOUT, STATEMENT_TIMEOUT, session, store};

/// What the role lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleGap {
    /// The setting.
    pub setting: &'static str,
    /// What it is now.
    pub found: String,
    /// The statement that mends it, for a superuser or whoever may alter the role.
    pub statement: String,
}

/// Looks for settings that the role lacks: a timeout that is off, plans that are made anew for each statement.
///
/// Straight to PostgreSQL nothing can be lacking, since each session brings its own.
///
/// # Errors
/// Only the database's.
pub async fn role_gaps(pool: &PgPool) -> Result<Vec<RoleGap>, sqlx::Error> {
    let mut conn = session(pool).await?;
    let (role, found) = store::role_settings(&mut conn).await?;
    let wanted = [
        ("statement_timeout", format!("{}s", STATEMENT_TIMEOUT.as_secs())),
        ("lock_timeout", format!("{}s", LOCK_TIMEOUT.as_secs())),
        ("idle_in_transaction_session_timeout", format!("{}s", IDLE_IN_TRANSACTION_TIMEOUT.as_secs())),
        ("plan_cache_mode", "force_generic_plan".to_owned()),
    ];
    Ok(wanted
        .into_iter()
        .filter_map(|(setting, value)| {
            let found = found.iter().find(|(name, _)| name == setting).map(|(_, found)| found.clone())?;
            let lacks = found == "0" || (setting == "plan_cache_mode" && found != value);
            // Quoted as an identifier: a role may be called anything.
            let statement = format!("alter role \"{}\" set {setting} = '{value}';", role.replace('"', "\"\""));
            lacks.then_some(RoleGap { setting, found, statement })
        })
        .collect())
}
