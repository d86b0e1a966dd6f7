//! Attention.

use manyhands_program::AttentionSpec;

use super::Lowered;

pub(super) fn attention(out: &mut Lowered<'_>, _spec: &AttentionSpec) {
    super::moves::plain(out);
}
