//! TLS: what a URL says of it, and what a failed handshake means.

use leasehold_api::{Certificates, InvalidInput, tls_problem};
use mysql_async::{ClientIdentity, DriverError, Error, Opts, SslOpts};
use rustls::crypto::ring;

/// What the library needs to know of TLS. `None` if the URL doesn't require it. Certificates are always verified, and by the
/// authorities of the other backends.
pub(crate) fn required(
    url: &str,
    opts: &Opts,
    certificates: &Certificates,
) -> Result<Option<SslOpts>, InvalidInput> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let count = |name: &str| query.split('&').filter(|it| it.starts_with(name)).count();
    let ssl = opts.ssl_opts();
    let problem = match ssl {
        _ if count("require_ssl=") > 1 => "require_ssl is there twice",
        _ if count("built_in_roots=") > 0 => {
            "not built_in_roots, but Options::root_certificates replaces the authorities of the machine"
        }
        None if count("verify_ca=") + count("verify_identity=") > 0 => {
            "verify_ca and verify_identity need require_ssl=true"
        }
        None => {
            certificates.check_unused("they need require_ssl=true in the URL")?;
            return Ok(None);
        }
        Some(ssl) if ssl.accept_invalid_certs() || ssl.skip_domain_validation() => {
            "with TLS, the certificate and its host name are always verified"
        }
        Some(_) if opts.socket().is_some() => "a Unix socket has no TLS",
        Some(_) => return of_certificates(certificates).map(Some),
    };
    Err(InvalidInput::setting("URL", problem))
}

fn of_certificates(certificates: &Certificates) -> Result<SslOpts, InvalidInput> {
    // The library reads them when it connects, and its errors may show a key.
    certificates.client_config(true)?;
    // The library takes the default of the process. If there is none, it makes one, or panics if another package has enabled
    // a second provider.
    drop(ring::default_provider().install_default());
    let authorities = certificates.authorities()?;
    let authorities = authorities.iter().map(|it| it.to_vec().into()).collect();
    let client = certificates
        .client()
        .map(|(chain, key)| ClientIdentity::new(chain.to_vec().into(), key.to_vec().into()));
    Ok(SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(authorities)
        .with_client_identity(client))
}

/// Says what to check if there is no TLS with the server, and a later attempt would not succeed.
pub(crate) fn problem(error: &Error) -> Option<&'static str> {
    if matches!(error, Error::Driver(DriverError::NoClientSslFlagFromServer)) {
        return Some("the server doesn't use TLS; enable it there");
    }
    tls_problem(error)
}
