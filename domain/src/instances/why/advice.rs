//! What to do about each reason. A code without a line here is told by its sentence alone.

use super::Facts;
use crate::ids::RegionCode;
use crate::instances::NOT_REPLICATED;

/// What to do about a code; `None` where nothing is to be done, or nobody knows better than the sentence itself.
pub(super) fn of(code: &str, facts: &Facts) -> Option<String> {
    let (app, host) = (&facts.record.app, &facts.record.host);
    let newest = facts.newest.as_ref();
    let from = newest.map_or(&facts.record.region, |it| &it.from);
    let to = newest.map_or(&facts.record.region, |it| &it.to);
    let on_box = facts.seat.as_ref().map_or_else(|| "its box".to_owned(), |seat| format!("box {}", seat.identity));
    let unstick = format!("leasehold instance unstick {app} {host} --confirm {host} --reason …");
    Some(match code {
        NOT_REPLICATED => format!(
            "See whether the object store of {} answers {on_box}, and read litestream's log in instances/{host} of its data \
             folder. Until it replicates again, what is written is on the disk of {on_box} alone: a cut waits for it, and a \
             machine that is lost takes it along.",
            facts.record.region
        ),
        "box_silent" => format!(
            "See whether the machine of {on_box} is up and reaches the database, and start its worker again with the same \
             `--node` and data folder: it goes on where it was. Nothing else may serve the instance meanwhile."
        ),
        "no_box" => start_box(&facts.record.region),
        "job_missing" => "Nothing, if a worker lives: `leasehold worker list`.".to_owned(),
        "parked" => format!("`leasehold instance wake {app} {host}` lets it run."),
        "ready" => format!(
            "Freeze the application's writes, then `leasehold instance cut {app} {host} --wait`; thaw them when it says \
             that the target serves."
        ),
        "freeze_over_budget" => format!(
            "`leasehold instance cut {app} {host} --force` cuts it all the same; or `leasehold instance abort {app} {host}`, \
             and begin the move again with a larger `--freeze-budget`. What is predicted falls with the newest cuts between \
             the two regions."
        ),
        "state_unknown" => format!("Upgrade the worker of {on_box} and the API to the version that wrote it."),
        "paused_queue" | "paused_kind" => "`leasehold queue pauses` lists who paused what; resume it.".to_owned(),
        "queue_limit" | "key_limit" | "rate_limit" => {
            "Wait, or raise the limit with `leasehold queue limit`.".to_owned()
        }
        "workers_full" => format!("Wait, or raise `worker.concurrency` of {on_box}."),
        "busy" => "Wait: rounds go on, and a quieter moment makes it ready. Freezing the writes for a round makes one."
            .to_owned(),
        "source_empty" => format!(
            "See that the instance runs on {on_box} and that its litestream replicates: the folder \
             instances/{host} below the box's data folder has both logs."
        ),
        "source_unreadable"
        | "source_unreachable"
        | "source_throttled"
        | "source_failing"
        | "source_listing_incomplete" => store_of(from, &on_box),
        // A landing reads the store of the box that lands it, which is the record's region.
        "store_unreadable" => store_of(&facts.record.region, &on_box),
        "target_unreachable" | "target_throttled" | "target_failing" | "target_listing_incomplete" => {
            format!("See whether the object store of {to} answers {on_box}; rounds are tried again by themselves.")
        }
        "target_forbidden" | "copy_forbidden" | "delete_forbidden" | "target_refused" => format!(
            "Give the boxes of {from} the sibling rights on the bucket of {to}: `sibling_staging_arns` of deploy/iam."
        ),
        "target_no_bucket" => {
            format!("Make the bucket that region {to} names, or name the right one with `leasehold region set {to}`.")
        }
        "delete_failing" | "delete_refused" | "staging_left" => format!(
            "See what keeps the store from deleting below moves/{host}: missing rights, an object lock, a legal hold. It \
             is tried again by itself."
        ),
        "staging_not_empty" => format!("Find who writes below moves/{host} in the bucket of {to}, and end that."),
        "sweep_failed" => {
            format!("See whether the object store of {to} answers {on_box}; it is tried again by itself.")
        }
        "source_format" | "target_format" => format!(
            "Remove from the prefix what litestream 0.5 did not write, after a look at it; `leasehold instance abort {app} \
             {host}` empties the staging."
        ),
        "target_coordinates_missing" => start_box(to),
        "target_cannot_host" => format!(
            "{} Where values of its environment are sealed, one of its boxes needs the key (`node.config_key`), or seal them to one \
             that a box there holds: `leasehold instance env {app} {host} --file PATH`.",
            start_box(to)
        ),
        "target_unarmed" => format!(
            "`leasehold region set {to} --armed`, or give the move up with `leasehold instance abort {app} {host}`."
        ),
        "target_changed" | "host_invalid" => {
            format!("`leasehold instance abort {app} {host}`, and begin the move again.")
        }
        "cannot_prove" | "cannot_restore" => {
            format!("Set `node.litestream` (and `node.exec`) of {on_box}, and start its worker again.")
        }
        "child_hangs" => format!(
            "On the machine of {on_box}, see what the named process waits for and end it: it is never killed from here, \
             since what it has not written would be lost. The cut goes on by itself within seconds. Or take the cut back: \
             `{unstick}`."
        ),
        "tail_unproven" => format!(
            "See whether the object store of {from} answers {on_box}, and read litestream's log in instances/{host} of its \
             data folder. Nothing is deleted before the proof, which is tried again by itself. Where the \
             database is damaged, or its replica cannot be renewed, take the cut back and mend it there: `{unstick}`."
        ),
        "tail_not_staged" => format!(
            "See who else writes to instances/{host} or moves/{host}: nobody may. It is tried again every few seconds."
        ),
        "purge_failed" => {
            format!(
                "Free the folder instances/{host} of {on_box} of what keeps its files: rights, a full disk, a mount."
            )
        }
        "out_of_scope" => format!(
            "The record was pointed elsewhere by hand. Look at `leasehold instance show {app} {host}` before anything else."
        ),
        "source_without_etags" => {
            format!("Keep the replicas of {from} in a store whose listings carry ETags: this one's do not.")
        }
        "journal" => "See whether the database answers; the round is tried again by itself.".to_owned(),
        "spill" => format!("Free space for temporary files on {on_box}; the round is tried again by itself."),
        "staging_missing" => format!(
            "Do not begin it anew. The replica of {from} is kept: copy it back to moves/{host} in the bucket of {to}, byte \
             by byte, or have the record pointed back to {from}."
        ),
        "staging_differs" | "restore_differs" => format!(
            "Compare moves/{host} in the bucket of {to} with instances/{host} in that of {from}, which is kept, and copy \
             what differs; the landing is tried again by itself."
        ),
        "staging_busy" => format!("Find who writes below moves/{host} in the bucket of {to}: nobody may."),
        "nothing_to_restore" => format!(
            "Bring its replica back to instances/{host} of its region's bucket. An instance that was served before is \
             never begun anew by itself."
        ),
        "replica_broken" | "restore_failed" => format!(
            "Read the message: a damaged object is replaced from {from}, which keeps its replica; a full disk is freed. It \
             is tried again by itself."
        ),
        "database_behind" => format!(
            "Move app.db out of instances/{host} of {on_box}'s data folder and keep it: the next try restores the replica, \
             which is newer."
        ),
        "database_unknown" => format!(
            "Read litestream's log in instances/{host} of {on_box}'s data folder. If it cannot be helped, move app.db away \
             and keep it: the next try restores the replica."
        ),
        "prefix_occupied" => format!(
            "Find out whose data is below instances/{host} and moves/{host} in the bucket of {from}, and in instances/{host} \
             of {on_box}'s data folder. Move it away: the record then begins anew."
        ),
        "config_key" => format!(
            "Give a box of {region} that runs instances the key that the values are sealed to (`node.config_key`), and start \
             its worker again: it goes on by itself, and nothing is restored or started before. `leasehold region list` \
             shows which keys boxes hold. Or seal the values to one of those, and set them: `leasehold instance env {app} {host} \
             --file PATH`.",
            region = facts.record.region
        ),
        "database_damaged" => format!(
            "Move app.db out of instances/{host} of {on_box}'s data folder and keep it: the next try restores the replica."
        ),
        _ => return None,
    })
}

fn store_of(region: &RegionCode, on_box: &str) -> String {
    format!(
        "See whether the object store of {region} answers {on_box}, and whether the box's rights there are those of \
         deploy/iam."
    )
}

fn start_box(region: &RegionCode) -> String {
    format!(
        "Start the worker of a box there: `leasehold worker --node … --region {region}`, with `node.exec` and \
         `node.litestream` set."
    )
}
