//! manyhands: train models with as many machines as they deserve.
