//! Proof of the cluster's secret, and encryption.
//!
//! Every connection begins with a [`Handshake`], in which both sides prove that they know the [`Secret`] before anything else
//! of the other is parsed (N1). It leaves [`Keys`], with which a [`SecureLink`] encrypts another link.
//!
//! The cryptography is Noise (`Noise_NNpsk0_25519_AESGCM_SHA256`), as `snow` does it with the ciphers of `ring`. What an observer
//! recorded stays secret when the cluster's secret is found out later. There are no identities below the secret: who knows it is
//! a member.

mod handshake;
mod keys;
mod link;
mod secret;

pub use handshake::{
    Established, HELLO_MAX, Handshake, HandshakeError, PROTOCOL_VERSION, Purpose, Stage,
};
pub use keys::{Keys, RECORD_MAX, TAG_LEN};
pub use link::SecureLink;
pub use secret::{SECRET_VARIABLE, Secret, SecretError};
