//! seaweed
