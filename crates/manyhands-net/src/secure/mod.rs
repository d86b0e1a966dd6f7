//! Proof of the cluster's secret, and encryption.
