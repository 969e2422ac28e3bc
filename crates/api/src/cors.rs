//! Cross-origin resource sharing (CORS): allowed origins of browser pages.
//!
//! Browsers send `Origin` with requests of such pages. A request from an origin that is not allowed is refused before
//! its body is read, because CORS alone only hides the response of a request without a preflight.

use crate::error::{ApiError, ErrorShape};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;

/// An invalid CORS setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorsError {
    /// An origin that no browser would send.
    #[error("`{0}` is not an origin")]
    Origin(String),
    /// An invalid name of a method or a header.
    #[error("`{0}` is not a name of a method or a header")]
    Name(String),
}

/// Allowed origins.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origins {
    Any,
    /// Pages that this machine serves, and applications with their own URL scheme.
    Local,
    Listed(Vec<String>),
}

/// Methods or headers of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    Any,
    Listed(Vec<String>),
}

/// CORS settings, with the names of vLLM's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsSettings {
    origins: Origins,
    methods: Names,
    headers: Names,
    credentials: bool,
}

impl CorsSettings {
    /// Allows only pages of this machine. Without an API key this is the default: any other page that a user visits
    /// could use the server.
    pub fn local() -> Self {
        let (methods, headers) = (Names::Any, Names::Any);
        Self { origins: Origins::Local, methods, headers, credentials: false }
    }

    /// Allows every origin.
    pub fn any() -> Self {
        Self { origins: Origins::Any, ..Self::local() }
    }

    /// Allows only these origins; `*` is every origin.
    ///
    /// # Errors
    /// [`CorsError::Origin`].
    pub fn with_origins(self, origins: &[String]) -> Result<Self, CorsError> {
        if origins.iter().any(|origin| origin == "*") {
            return Ok(Self { origins: Origins::Any, ..self });
        }
        let origins = origins.iter().map(|origin| normalized(origin));
        Ok(Self { origins: Origins::Listed(origins.collect::<Result<_, _>>()?), ..self })
    }

    /// Allows only these methods; `*` is every method.
    ///
    /// # Errors
    /// [`CorsError::Name`].
    pub fn with_methods(self, methods: &[String]) -> Result<Self, CorsError> {
        let methods = names(methods, |name| {
            Method::from_bytes(name.as_bytes()).ok().map(|_| name.to_ascii_uppercase())
        })?;
        Ok(Self { methods, ..self })
    }

    /// Allows only these headers; `*` is every header.
    ///
    /// # Errors
    /// [`CorsError::Name`].
    pub fn with_headers(self, headers: &[String]) -> Result<Self, CorsError> {
        let headers = names(headers, |name| {
            HeaderName::from_bytes(name.as_bytes()).ok().map(|name| name.as_str().to_owned())
        })?;
        Ok(Self { headers, ..self })
    }

    /// Allows cookies and HTTP authentication.
    #[must_use]
    pub fn with_credentials(self, credentials: bool) -> Self {
        Self { credentials, ..self }
    }

    /// The allowed origins as text.
    pub fn describe(&self) -> String {
        match &self.origins {
            Origins::Any => "every origin".to_owned(),
            Origins::Local => "this machine".to_owned(),
            Origins::Listed(origins) if origins.is_empty() => "no origin".to_owned(),
            Origins::Listed(origins) => origins.join(", "),
        }
    }

    fn allows(&self, origin: &str) -> bool {
        match &self.origins {
            Origins::Any => true,
            Origins::Local => is_local(origin),
            Origins::Listed(origins) => {
                origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
            }
        }
    }

    /// Checks a request's `Origin`.
    pub(crate) fn decide(&self, headers: &HeaderMap) -> Decision {
        let Some(origin) = headers.get(ORIGIN) else { return Decision::NoOrigin };
        match origin.to_str().is_ok_and(|origin| self.allows(origin)) {
            true => Decision::Allowed(origin.clone()),
            false => Decision::Refused(ApiError::origin_not_allowed(&String::from_utf8_lossy(
                origin.as_bytes(),
            ))),
        }
    }

    /// The response to a preflight of an allowed origin.
    pub(crate) fn preflight(&self, origin: &HeaderValue, requested: &HeaderMap) -> Response {
        /// Seconds for which a browser may cache the response.
        const MAX_AGE: &str = "600";
        const PRIVATE_NETWORK_REQUESTED: &str = "access-control-request-private-network";
        const PRIVATE_NETWORK: &str = "access-control-allow-private-network";
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        let mirrored = |names: &Names, requested: Option<&HeaderValue>| match names {
            Names::Any => requested.cloned(),
            Names::Listed(names) => HeaderValue::from_str(&names.join(", ")).ok(),
        };
        let methods = mirrored(&self.methods, requested.get(ACCESS_CONTROL_REQUEST_METHOD));
        headers.extend(methods.map(|methods| (ACCESS_CONTROL_ALLOW_METHODS, methods)));
        let names = mirrored(&self.headers, requested.get(ACCESS_CONTROL_REQUEST_HEADERS));
        headers.extend(names.map(|names| (ACCESS_CONTROL_ALLOW_HEADERS, names)));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        if requested.contains_key(PRIVATE_NETWORK_REQUESTED) {
            headers.insert(PRIVATE_NETWORK, HeaderValue::from_static("true"));
        }
        self.expose(origin, &mut response);
        response
    }

    /// Lets a page read a response.
    pub(crate) fn expose(&self, origin: &HeaderValue, response: &mut Response) {
        let headers = response.headers_mut();
        let any = self.origins == Origins::Any && !self.credentials;
        let allowed = if any { HeaderValue::from_static("*") } else { origin.clone() };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if !any {
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
        if self.credentials {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        // A page reads from it when to retry.
        let retry_after = HeaderValue::from_static("retry-after");
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, retry_after);
    }
}

/// The result of checking a request's origin.
pub(crate) enum Decision {
    /// No `Origin` header: the request is not from a page, or is a same-origin GET.
    NoOrigin,
    Allowed(HeaderValue),
    Refused(ApiError),
}

impl Decision {
    /// The response to a preflight or to a refused request.
    pub(crate) fn response(
        &self,
        settings: &CorsSettings,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Response> {
        let preflight =
            method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        match self {
            Self::Allowed(origin) if preflight => Some(settings.preflight(origin, headers)),
            Self::Refused(error) => Some(error.response(ErrorShape::OpenAi)),
            _ => None,
        }
    }
}

/// An origin as browsers write it: scheme, host and port.
fn normalized(origin: &str) -> Result<String, CorsError> {
    let wrong = || CorsError::Origin(origin.to_owned());
    if origin == "null" {
        return Ok(origin.to_owned());
    }
    let trimmed = origin.trim_end_matches('/');
    let (scheme, host) = trimmed.split_once("://").ok_or_else(wrong)?;
    let named = !scheme.is_empty() && !host.is_empty();
    if !named || host.contains(['/', ' ', '*', '@']) || HeaderValue::from_str(trimmed).is_err() {
        return Err(wrong());
    }
    Ok(trimmed.to_ascii_lowercase())
}

/// Whether an origin is local: a page of a loopback address, or an application with bundled pages.
fn is_local(origin: &str) -> bool {
    /// URL schemes of desktop applications, which no web site can use.
    const APPLICATIONS: [&str; 5] = ["app", "tauri", "vscode-file", "vscode-webview", "capacitor"];
    let Some((scheme, host)) = origin.split_once("://") else { return false };
    if APPLICATIONS.iter().any(|own| scheme.eq_ignore_ascii_case(own)) {
        return true;
    }
    if !["http", "https"].iter().any(|web| scheme.eq_ignore_ascii_case(web)) {
        return false;
    }
    let name = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    match name.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => {
            let name = name.to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

fn names(names: &[String], one: impl Fn(&str) -> Option<String>) -> Result<Names, CorsError> {
    if names.iter().any(|name| name == "*") {
        return Ok(Names::Any);
    }
    let one = |name: &String| one(name).ok_or_else(|| CorsError::Name(name.clone()));
    Ok(Names::Listed(names.iter().map(one).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn local_pages_are_those_of_loopback_addresses_and_applications() {
        for local in [
            "http://localhost:3000",
            "https://LOCALHOST",
            "http://127.0.0.1:8080",
            "http://127.9.9.9",
            "http://[::1]:5173",
            "http://app.localhost:1420",
            "tauri://localhost",
            "vscode-webview://1a2b",
        ] {
            assert!(CorsSettings::local().allows(local), "{local}");
        }
        for foreign in [
            "https://example.com",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
            "http://xlocalhost",
            "http://192.168.1.5",
            "http://[::2]",
            "null",
            "file://",
            "chrome-extension://abc",
            "",
        ] {
            assert!(!CorsSettings::local().allows(foreign), "{foreign}");
            assert!(CorsSettings::any().allows(foreign), "{foreign}");
        }
    }

    #[test]
    fn origins_are_compared_whole() {
        let origins = strings(&["https://Chat.example.com/", "http://10.0.0.1:3000"]);
        let cors = CorsSettings::any().with_origins(&origins).unwrap();
        assert!(cors.allows("https://chat.example.com") && cors.allows("http://10.0.0.1:3000"));
        for foreign in [
            "https://example.com",
            "http://chat.example.com",
            "http://10.0.0.1",
            "http://localhost",
        ] {
            assert!(!cors.allows(foreign), "{foreign}");
        }
        for wrong in
            ["localhost:3000", "https://", "https://a/b", "https://*.example.com", "a://b c"]
        {
            let wrong = strings(&[wrong]);
            let error = CorsSettings::any().with_origins(&wrong).unwrap_err();
            assert_eq!(error, CorsError::Origin(wrong[0].clone()));
        }
        let error = CorsSettings::any().with_headers(&strings(&["a b"])).unwrap_err();
        assert_eq!(error, CorsError::Name("a b".to_owned()));
    }

    #[test]
    fn credentials_name_the_origin() {
        let origin = HeaderValue::from_static("https://a.example");
        for (cors, want) in [
            (CorsSettings::any(), "*"),
            (CorsSettings::any().with_credentials(true), "https://a.example"),
            (CorsSettings::local(), "https://a.example"),
        ] {
            let mut response = Response::default();
            cors.expose(&origin, &mut response);
            assert_eq!(response.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], want);
            assert_eq!(response.headers().contains_key(VARY), want != "*");
        }
    }
}
