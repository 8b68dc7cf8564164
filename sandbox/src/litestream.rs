//! litestream
