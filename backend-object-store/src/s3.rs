//! A bucket of S3: its URL, and its connections.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Certificates, ConnectError, InvalidInput, bounds};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector};
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use reqwest::{redirect, retry};
use rustls::ClientConfig;
use url::Url;

/// The one setting of connections that is used: leasehold makes them.
const ALLOW_HTTP: AmazonS3ConfigKey = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
const AGENT: &str = concat!("leasehold/", env!("CARGO_PKG_VERSION"));

const LOGIN: &str = "credentials belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

/// The settings that are sent in headers. The library panics if one has a character that isn't printable ASCII.
const IN_HEADERS: [AmazonS3ConfigKey; 3] = [
    AmazonS3ConfigKey::AccessKeyId,
    AmazonS3ConfigKey::Token,
    AmazonS3ConfigKey::Region,
];

/// What a URL says.
pub(crate) struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) folder: Path,
    pub(crate) max_clock_skew: Option<Duration>,
}

/// The bucket of a URL, and the folder in it.
pub(crate) fn bucket_of(url: &str, certificates: &Certificates) -> Result<Bucket, ConnectError> {
    let url = Url::parse(url).map_err(|_| unusable("it can't be read"))?;
    if url.scheme() != "s3" {
        return Err(unusable("it begins with another scheme than s3:"));
    }
    if has_login(&url) {
        return Err(unusable(LOGIN));
    }
    let bucket = url.host_str().filter(|bucket| !bucket.is_empty());
    let bucket = bucket.ok_or_else(|| unusable("it names no bucket"))?;
    let folder = Path::from_url_path(url.path()).map_err(|_| unusable("no path of an object"))?;
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let mut max_clock_skew = None;
    for (key, value) in url.query_pairs() {
        if key == "max_clock_skew" {
            let skew = humantime::parse_duration(&value);
            max_clock_skew =
                Some(skew.map_err(|_| unusable("max_clock_skew is no time such as 5m"))?);
            continue;
        }
        // Not with the library's error, which may quote a password.
        let key: AmazonS3ConfigKey = key
            .parse()
            .map_err(|_| unusable("a parameter is no setting of AmazonS3ConfigKey"))?;
        if matches!(key, AmazonS3ConfigKey::Client(_)) && key != ALLOW_HTTP {
            return Err(unusable(
                "a parameter is a setting of connections that isn't used",
            ));
        }
        builder = builder.with_config(key, value);
    }
    let requires_tls = !is_on(builder.get_config_value(&ALLOW_HTTP));
    check_endpoint(&builder, requires_tls)?;
    check_headers(&builder)?;
    if !requires_tls {
        certificates.check_unused("they need an endpoint with TLS")?;
    }
    let tls = certificates.client_config(requires_tls)?;
    let retries = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    let store = builder
        .with_retry(retries)
        .with_http_connector(Connector { tls })
        .build()
        .map_err(|_| unusable("a setting of the URL or of a variable AWS_… can't be used"))?;
    Ok(Bucket {
        store: Arc::new(store),
        folder,
        max_clock_skew,
    })
}

fn check_headers(builder: &AmazonS3Builder) -> Result<(), ConnectError> {
    let of = |key| builder.get_config_value(key);
    let mut settings = IN_HEADERS.iter().filter_map(of);
    let is_printable = |byte| matches!(byte, b' '..=b'~');
    match settings.all(|text| text.bytes().all(is_printable)) {
        true => Ok(()),
        false => Err(unusable(
            "a key, a token or a region has a character that isn't printable ASCII, such as a line break",
        )),
    }
}

/// Credentials are sent in plain text only if the URL says so. Errors quote the endpoint, so it must have none.
fn check_endpoint(builder: &AmazonS3Builder, requires_tls: bool) -> Result<(), ConnectError> {
    let of = |key| builder.get_config_value(&key);
    let endpoint = of(AmazonS3ConfigKey::S3Endpoint).or_else(|| of(AmazonS3ConfigKey::Endpoint));
    let Some(endpoint) = endpoint else {
        return Ok(());
    };
    let endpoint = Url::parse(&endpoint);
    if endpoint.as_ref().is_ok_and(has_login) {
        return Err(unusable(LOGIN));
    }
    match endpoint.as_ref().map_or("", Url::scheme) {
        "https" => Ok(()),
        "http" if !requires_tls => Ok(()),
        "http" => Err(unusable("an endpoint with http: needs allow_http=true")),
        _ => Err(unusable("the endpoint is no URL with https:")),
    }
}

fn has_login(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

/// The error for a URL that can't be used. It has no source, which might quote the URL and so a password.
fn unusable(reason: &str) -> ConnectError {
    InvalidInput::setting("URL", reason).into()
}

/// Whether the library takes a setting for `true`.
fn is_on(setting: Option<String>) -> bool {
    let setting = setting.unwrap_or_default().to_ascii_lowercase();
    ["1", "true", "on", "yes", "y"].contains(&setting.as_str())
}

/// Makes connections with the certificates and the cryptography of the other backends.
#[derive(Debug)]
struct Connector {
    tls: ClientConfig,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = is_on(options.get_config_value(&ClientConfigKey::AllowHttp));
        let client = reqwest::Client::builder()
            .user_agent(AGENT)
            .tls_backend_preconfigured(self.tls.clone())
            .https_only(!allows_http)
            .http1_only()
            .connect_timeout(bounds::CONNECT_TIMEOUT)
            // A repeated write would refuse itself. A bucket elsewhere needs another signature.
            .retry(retry::never())
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|source| object_store::Error::Generic {
                store: "S3",
                source: Box::new(source),
            })?;
        Ok(HttpClient::new(client))
    }
}
