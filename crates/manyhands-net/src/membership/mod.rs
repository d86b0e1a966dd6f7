//! Who takes part, and who does what when that changes.
