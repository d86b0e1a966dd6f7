//! Stores for tests, known by their buckets, without the environment.

mod secure;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{ClientOptions, StaticCredentialProvider};

use super::stores::{Settings, register};
use super::web::{Patience, Web, authorities};

const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(5),
    read: Duration::from_millis(700),
    n_tries: 3,
    pause: Duration::from_millis(1),
};

static WEB: LazyLock<Web> = LazyLock::new(|| Web::new(PATIENCE, authorities()).unwrap());

/// Has the buckets of one name answered by a server on loopback, at `s3://`, `gs://` and `az://`.
pub(crate) fn register_bucket(bucket: &str, endpoint: &str) {
    let plain = ClientOptions::new().with_allow_http(true);
    let settings = Settings {
        s3: AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_client_options(plain.clone())
            .with_region("here")
            .with_access_key_id("key")
            .with_secret_access_key("secret"),
        google: GoogleCloudStorageBuilder::new()
            .with_base_url(endpoint)
            .with_client_options(plain.clone())
            .with_credentials(Arc::new(StaticCredentialProvider::new(GcpCredential {
                bearer: "token".into(),
            }))),
        azure: MicrosoftAzureBuilder::new()
            .with_endpoint(endpoint.into())
            .with_client_options(plain)
            .with_account("account")
            .with_access_key("c2VjcmV0"),
    };
    for scheme in ["s3", "gs", "az"] {
        register(&format!("{scheme}://{bucket}/any"), &settings, &WEB);
    }
}

/// Has a web address asked with less patience than users' ones.
pub(crate) fn impatient(url: &str) {
    register(url, &Settings::default(), &WEB);
}
