//! `leasehold doctor`: straight in the database, like `migrate`, since it must work where the API does not.

use domain::doctor::{Check, Report, Verdict};
use serde_json::{Value, json};

use super::Context;
use crate::exit::Exit;
use crate::{database, runtime};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: LEASEHOLD_DATABASE_URL=postgres://… leasehold doctor\n\n\
    Changes nothing. Ends with 7 where something is wrong or could not be looked at; each finding says what to do.")]
pub(crate) struct Args {}

pub(crate) fn run(context: &Context, _args: &Args) -> anyhow::Result<Exit> {
    let settings = context.settings(Vec::new())?;
    let report = runtime::run(async {
        let pool = database::connect(&settings).await?;
        Ok(domain::doctor::examine(&pool).await)
    })?;
    context.output.show(&for_programs(&report), |_| for_people(&report))?;
    Ok(if report.is_clean() { Exit::Ok } else { Exit::Findings })
}

fn for_programs(report: &Report) -> Value {
    let check = |check: &Check| {
        let (findings, unchecked) = match &check.verdict {
            Verdict::Checked(findings) => (findings.as_slice(), None),
            Verdict::Unchecked(reason) => ([].as_slice(), Some(reason)),
        };
        let findings: Vec<Value> =
            findings.iter().map(|it| json!({"message": it.what, "advice": it.advice, "facts": it.facts})).collect();
        json!({
            "check": check.name, "findings": findings, "unchecked": unchecked, "not_looked_at": check.blind_spot
        })
    };
    json!({"clean": report.is_clean(), "checks": report.checks.iter().map(check).collect::<Vec<_>>()})
}

fn for_people(report: &Report) -> String {
    let mut lines = Vec::new();
    let (mut wrong, mut unmade) = (0, 0);
    for check in &report.checks {
        match &check.verdict {
            Verdict::Checked(findings) => {
                wrong += findings.len();
                for it in findings {
                    lines.push(format!("{}: {}\n  next: {}", check.name, it.what, it.advice));
                }
            }
            Verdict::Unchecked(reason) => {
                unmade += 1;
                lines.push(format!("{}: could not be checked: {reason}", check.name));
            }
        }
        if let Some(blind_spot) = &check.blind_spot {
            lines.push(format!("{}: not looked at: {blind_spot}", check.name));
        }
    }
    let found = match (wrong, unmade) {
        (0, 0) => format!("nothing wrong was found by {} checks", report.checks.len()),
        (0, _) => "no finding".to_owned(),
        (1, _) => "1 finding".to_owned(),
        (more, _) => format!("{more} findings"),
    };
    lines.push(match unmade {
        0 => found,
        1 => format!("{found}, and 1 check could not be made"),
        more => format!("{found}, and {more} checks could not be made"),
    });
    lines.join("\n")
}
