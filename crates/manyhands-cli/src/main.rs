//! The `manyhands` command.
fn main() {}
