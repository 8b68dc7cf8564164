//! The move of an ended job from the live jobs to the finished ones, in one place: which columns it takes along.

/// A statement that moves what its part `gone`, a `delete … returning j.*`, took from `jobs` to `jobs_finished`: what
/// stands before, the end's own words, what stands behind, and the parameters.
///
/// `settled_fence` is the fence of the holder whose outcome ended the job. Where no holder wrote the end it is null; what
/// holders settled before stands in the attempts.
macro_rules! finishing {
    (
        $before:literal,
        state = $state:literal,
        interruptions = $interruptions:literal,
        settled_fence = $settled_fence:literal,
        last_error = $last_error:literal,
        result = $result:literal,
        $behind:literal
        $(, $parameter:expr)* $(,)?
    ) => {
        sqlx::query!(
            $before
                + r#"
            insert into jobs_finished (id, kind, queue, state, priority, run_at, created_at, finished_at, args, attempt,
                                       max_attempts, interruptions, revision, fence, settled_fence, worker_id,
                                       leased_at, deadline_ms, protected, max_interruptions, progress, tags,
                                       unique_key, concurrency_key, parent_id, traceparent, last_error, result)
            select id, kind, queue, "# + $state + r#", priority, run_at, created_at, (select lh_now()), args, attempt,
                   max_attempts, "# + $interruptions + r#", revision + 1, fence, "# + $settled_fence + r#", worker_id,
                   leased_at, deadline_ms, protected, max_interruptions, progress, tags,
                   unique_key, concurrency_key, parent_id, traceparent, "# + $last_error + ", " + $result + r#"
              from gone
            "# + $behind
            $(, $parameter)*
        )
    };
}

pub(super) use finishing;
