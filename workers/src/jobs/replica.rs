//! What is mirrored of an instance.

use domain::ids::Host;
use domain::instances::moves::Obstacle;

use crate::chain::chain;
use crate::mirror::Pair;
use crate::node::NodeContext;

/// The pair of an instance's replica. Where the box had to renew that, what ended before is left out: nobody restores it, and
/// litestream in the target would stumble over what is damaged of it at every compaction.
pub(super) async fn pair_of(node: &NodeContext, host: &Host) -> Result<Pair, Obstacle> {
    let pair =
        Pair::of_instance(host.as_str()).map_err(|error| Obstacle::lasting("host_invalid", error.to_string()))?;
    let Some(activator) = node.activator() else { return Ok(pair) };
    // Boxed: a listing is a deep future, and the jobs that hold it are deep without it.
    match Box::pin(activator.whole_from(host)).await {
        Ok(from) => Ok(pair.beginning_with(from)),
        Err(error) => Err(Obstacle::passing("source_failing", chain(&error))),
    }
}
