//! api/wire
