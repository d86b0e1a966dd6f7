//! The stores behind URLs, each made once from what the environment says.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::address::{Address, Scheme};
use super::error::ObjectError;
use super::fault::text_of;
use super::web::{Patience, Web, authorities};

/// Who asks, and where.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) s3: AmazonS3Builder,
    pub(super) google: GoogleCloudStorageBuilder,
    pub(super) azure: MicrosoftAzureBuilder,
}

impl Settings {
    /// From the variables that the tools of each cloud use.
    fn from_env() -> Settings {
        Settings {
            s3: AmazonS3Builder::from_env(),
            google: GoogleCloudStorageBuilder::from_env(),
            azure: MicrosoftAzureBuilder::from_env(),
        }
    }
}

/// What holds objects: a bucket, a container, or one URL of a web server.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// Web servers have no list of what they hold.
    pub(super) lists: Option<Arc<dyn PaginatedListStore>>,
    pub(super) patience: Patience,
}

impl Store {
    /// The store of an address.
    pub(super) fn of(address: &Address) -> Result<Store, ObjectError> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = known.get(address.root()) {
            return Ok(store.clone());
        }
        let no_client = |reason: &String| ObjectError::NoClient {
            url: address.url.clone(),
            reason: reason.clone(),
        };
        let (settings, web) = &*ENVIRONMENT;
        let store = Store::new(address, settings, web.as_ref().map_err(no_client)?)?;
        if address.scheme != Scheme::Web {
            known.insert(address.root().into(), store.clone());
        }
        Ok(store)
    }

    fn new(address: &Address, settings: &Settings, web: &Web) -> Result<Store, ObjectError> {
        let retry = once();
        let bucket = address.bucket.as_str();
        let failed = |err: object_store::Error| ObjectError::Settings {
            url: address.url.clone(),
            reason: text_of(&err),
            looked_at: looked_at(address.scheme),
        };
        let patience = web.patience;
        macro_rules! bucket_store {
            ($builder:expr) => {{
                let built = $builder.with_http_connector(web.clone()).with_retry(retry).build();
                let built = Arc::new(built.map_err(failed)?);
                Store { objects: built.clone(), lists: Some(built), patience }
            }};
        }
        Ok(match address.scheme {
            Scheme::S3 => bucket_store!(settings.s3.clone().with_bucket_name(bucket)),
            Scheme::Google => bucket_store!(settings.google.clone().with_bucket_name(bucket)),
            Scheme::Azure => bucket_store!(settings.azure.clone().with_container_name(bucket)),
            Scheme::Web => {
                let built = HttpBuilder::new()
                    .with_url(&address.url)
                    .with_client_options(ClientOptions::new().with_allow_http(true))
                    .with_http_connector(web.clone())
                    .with_retry(retry)
                    .build();
                Store { objects: Arc::new(built.map_err(failed)?), lists: None, patience }
            }
        })
    }
}

static ENVIRONMENT: LazyLock<(Settings, Result<Web, String>)> =
    LazyLock::new(|| (Settings::from_env(), Web::new(Patience::default(), authorities())));

/// By the root of an address.
static KNOWN: LazyLock<Mutex<HashMap<String, Store>>> = LazyLock::new(Mutex::default);

/// Requests are made once; `flow` makes them again.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// Which variables of the environment were looked at, and which of them are set, for messages.
pub(super) fn looked_at(scheme: Scheme) -> String {
    let variables = scheme.variables();
    if variables.is_empty() {
        return String::new();
    }
    let set: Vec<&str> =
        variables.iter().copied().filter(|name| std::env::var_os(name).is_some()).collect();
    let set =
        if set.is_empty() { "none is set".into() } else { format!("set: {}", set.join(", ")) };
    format!("; of the environment {} were looked at ({set})", variables.join(", "))
}

/// Makes a store known under settings that are not those of the environment.
#[cfg(test)]
pub(super) fn register(url: &str, settings: &Settings, web: &Web) {
    let address = Address::parse(url).unwrap();
    let store = Store::new(&address, settings, web).unwrap();
    KNOWN.lock().unwrap().insert(address.root().into(), store);
}
