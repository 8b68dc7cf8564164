//! What each operation does once it was let in.

mod copies;
mod lists;
mod multipart;
mod objects;
mod upload;
