//! URLs of files, taken apart.

use super::error::ObjectError;

/// Whether the name of a file is a URL instead of a path.
pub fn is_url(name: &str) -> bool {
    name.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// What answers behind a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    S3,
    Google,
    Azure,
    Web,
}

impl Scheme {
    /// The environment variables that decide who asks and where, for messages.
    pub(super) fn variables(self) -> &'static [&'static str] {
        match self {
            Scheme::S3 => &[
                "AWS_ACCESS_KEY_ID",
                "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN",
                "AWS_REGION",
                "AWS_ENDPOINT",
                "AWS_SKIP_SIGNATURE",
            ],
            Scheme::Google => &[
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SKIP_SIGNATURE",
            ],
            Scheme::Azure => &[
                "AZURE_STORAGE_ACCOUNT_NAME",
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_SKIP_SIGNATURE",
            ],
            Scheme::Web => &[],
        }
    }
}

/// A URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(super) scheme: Scheme,
    /// As the user wrote it.
    pub(super) url: String,
    /// The bucket or container; nothing for web servers.
    pub(super) bucket: String,
    /// The name of the object in it; nothing for web servers.
    pub(super) key: String,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Address, ObjectError> {
        let bad = |reason: &str| ObjectError::BadUrl { url: url.into(), reason: reason.into() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it has no `://`"))?;
        let scheme = match scheme {
            "s3" => Scheme::S3,
            "gs" => Scheme::Google,
            "az" => Scheme::Azure,
            "http" | "https" => Scheme::Web,
            _ => {
                return Err(bad(
                    "it starts with none of s3://, gs://, az://, http:// and https://",
                ));
            }
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') {
            return Err(bad("keys and passwords belong into the environment, not into a URL"));
        }
        if bucket.is_empty() {
            return Err(bad("it names no bucket, container or host"));
        }
        let url = url.to_string();
        if scheme == Scheme::Web {
            return Ok(Address { scheme, url, bucket: String::new(), key: String::new() });
        }
        if key.is_empty() || key.ends_with('/') {
            return Err(bad("it names no object; name those to read, such as `folder/*.csv`"));
        }
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(bad("a part of its path is empty, `.` or `..`"));
        }
        Ok(Address { scheme, url, bucket: bucket.into(), key: key.into() })
    }

    /// The bucket, or for a web server, where every URL is for itself, all of it.
    pub(super) fn root(&self) -> &str {
        match self.scheme {
            Scheme::Web => &self.url,
            _ => &self.url[..self.url.len() - self.key.len() - 1],
        }
    }
}

/// The end of a path or URL that says what the file is.
pub(crate) fn file_name(file: &str) -> &str {
    let is_web = file.starts_with("http://") || file.starts_with("https://");
    let path = if is_web { file.split(['?', '#']).next().unwrap_or(file) } else { file };
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for url in ["s3://b/k.csv", "https://h/x?y=://", "hdfs://n/x", "S3://b/k"] {
            assert!(is_url(url), "{url}");
        }
        for path in ["a.csv", "/a/b.csv", "s3:/b", "://x", "a b://x", "data/s3://x", "7z://x"] {
            assert!(!is_url(path), "{path}");
        }
    }

    #[test]
    fn a_url_has_a_bucket_and_a_key() {
        let address = Address::parse("gs://bucket/a/b c.csv").unwrap();
        assert_eq!((address.scheme, address.root()), (Scheme::Google, "gs://bucket"));
        assert_eq!((address.bucket.as_str(), address.key.as_str()), ("bucket", "a/b c.csv"));
        let address = Address::parse("https://host:80/a/b.csv?x=1/2").unwrap();
        assert_eq!(
            (address.scheme, address.root()),
            (Scheme::Web, "https://host:80/a/b.csv?x=1/2")
        );
    }

    #[test]
    fn what_is_no_url_of_a_file_is_said() {
        let check = |url: &str, reason: &str| {
            let sentence = Address::parse(url).unwrap_err().to_string();
            assert!(sentence.contains(url) && sentence.contains(reason), "{sentence}");
        };
        check("hdfs://a/b.csv", "none of s3://");
        check("s3:///b.csv", "names no bucket");
        check("s3://bucket", "names no object");
        check("s3://bucket/folder/", "names no object");
        check("s3://bucket/a//b.csv", "is empty");
        check("az://c/../b.csv", "`..`");
        check("https://me:secret@host/x.csv", "belong into the environment");
    }

    #[test]
    fn the_query_of_a_web_address_is_no_part_of_its_name() {
        assert_eq!(file_name("https://h/a/b.csv?x=1/y.npy#z"), "b.csv");
        assert_eq!(file_name("s3://b/a/odd?.csv"), "odd?.csv");
        assert_eq!(file_name("/a/b#1.csv"), "b#1.csv");
    }
}
