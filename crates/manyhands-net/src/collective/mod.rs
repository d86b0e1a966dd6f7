//! Operations that all ranks of a group do together.
