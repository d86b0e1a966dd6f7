//! Any line and bytes as what driver and workers say to each other: no panic.

pub(crate) fn body(bytes: &[u8]) {
    manyhands::cluster::read_words(bytes);
}
