//! The rights of a box, as `deploy/iam` gives them: what the documents say, that the Terraform module says the same, and
//! on a server that evaluates such documents that they are enough for a move and for nothing else.

mod denied;
mod documents;
mod module;
mod moves;
mod stand;
