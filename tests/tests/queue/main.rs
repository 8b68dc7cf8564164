//! The queue's store, against a real PostgreSQL: every verb, every refusal, every race.

mod again;
mod batches;
mod blocked;
mod bookkeeping;
mod clock;
mod doctor;
mod enqueueing;
mod evidence;
mod fences;
mod inside;
mod leasing;
mod limits;
mod limits_set;
mod low_water;
mod model;
mod operating;
mod plans;
mod polling;
mod pruning;
mod races;
mod rescuing;
mod settling;
mod states;
mod support;
mod trials;
mod turns;
