//! Which objects a URL means: itself, or those that match where its key is a pattern.

use std::path::Path;
use std::sync::Arc;

use glob::{MatchOptions, Pattern};
use object_store::list::{PaginatedListOptions, PaginatedListStore};

use super::address::{Address, Scheme};
use super::error::ObjectError;
use super::fault::{Fault, fault_of};
use super::flow::{Spent, Tries};
use super::stores::Store;
use super::thread::{Ticket, begin};

/// What makes a key a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// The URLs that a URL means, in the order of their names. Whether an object is there is found out when it is opened.
pub(crate) fn resolve(url: &str) -> Result<Vec<Arc<Path>>, ObjectError> {
    let address = Address::parse(url)?;
    // In the address of a web page a question mark begins a query.
    if address.scheme == Scheme::Web || !address.key.contains(WILD) {
        return Ok(vec![Path::new(url).into()]);
    }
    let pattern = Pattern::new(&address.key)
        .map_err(|err| ObjectError::BadGlob { url: url.into(), reason: err.msg })?;
    let store = Store::of(&address)?;
    let listed = begin(keys(address.clone(), store)).and_then(Ticket::wait);
    let keys = listed.map_err(|reason| ObjectError::NoClient { url: url.into(), reason })??;
    // An object whose very name has a bracket or a star in it is meant before any pattern is.
    if keys.contains(&address.key) {
        return Ok(vec![Path::new(url).into()]);
    }
    let options = MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot: true,
        ..MatchOptions::default()
    };
    let mut matches: Vec<String> =
        keys.into_iter().filter(|key| pattern.matches_with(key, options)).collect();
    if matches.is_empty() {
        return Err(ObjectError::NoMatch { url: url.into() });
    }
    matches.sort();
    let found = |key: &String| Path::new(&format!("{}/{key}", address.root())).into();
    Ok(matches.iter().map(found).collect())
}

/// The keys that start as the pattern does before its first wild character.
async fn keys(address: Address, store: Store) -> Result<Vec<String>, ObjectError> {
    let Some(lists) = &store.lists else { return Ok(Vec::new()) };
    let wild = address.key.find(WILD).unwrap_or(address.key.len());
    let (prefix, rest) = address.key.split_at(wild);
    // Folders below are looked into only where the pattern goes on there.
    let is_flat = !rest.contains('/') && !rest.contains("**");
    let mut options = PaginatedListOptions {
        delimiter: is_flat.then_some("/".into()),
        ..PaginatedListOptions::default()
    };
    let mut keys = Vec::new();
    loop {
        let page = page(&address, &store, lists.as_ref(), prefix, &options).await?;
        keys.extend(page.result.objects.into_iter().map(|object| object.location.to_string()));
        options.page_token = page.page_token;
        if options.page_token.is_none() {
            return Ok(keys);
        }
    }
}

async fn page(
    address: &Address,
    store: &Store,
    lists: &dyn PaginatedListStore,
    prefix: &str,
    options: &PaginatedListOptions,
) -> Result<object_store::list::PaginatedListResult, ObjectError> {
    let mut tries = Tries::new(store.patience);
    let url = || address.url.clone();
    let prefix = (!prefix.is_empty()).then_some(prefix);
    loop {
        let reason = match lists.list_paginated(prefix, options.clone()).await {
            Ok(page) => return Ok(page),
            Err(err) => match fault_of(address, &err) {
                Fault::Final(err) => return Err(err),
                Fault::Passing(reason) => reason,
                Fault::NoRanges | Fault::NoSuchBytes => {
                    let reason = "it cannot be listed".into();
                    return Err(ObjectError::Refused { url: url(), reason });
                }
            },
        };
        let unreachable = |spent: Spent| ObjectError::Unreachable {
            url: url(),
            reason,
            n_tries: spent.n_tries,
            waited: spent.waited,
        };
        tries.pause().await.map_err(unreachable)?;
    }
}
