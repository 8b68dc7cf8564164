//! The API over real HTTP and a real PostgreSQL.

mod access;
mod again;
mod bodies;
mod connections;
mod description;
mod events;
mod figures;
mod freeze;
mod held;
mod hints;
mod instances;
mod jobs;
mod keys;
mod limits;
mod lists;
mod logs;
mod marks;
mod moves;
mod operate;
mod outage;
mod pages;
mod regions;
mod repeat;
mod standing;
mod strangers;
mod why;
