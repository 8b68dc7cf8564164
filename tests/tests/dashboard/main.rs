//! The dashboard over real HTTP, a real PostgreSQL and a real Chromium.

mod browser;
mod effort;
mod figures;
mod instances;
mod pages;
mod queues;
mod sessions;
mod support;
