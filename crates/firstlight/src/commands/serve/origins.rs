//! CORS settings from the command line.

use crate::cli::Cors;
use crate::failure::Failure;
use api::{CorsError, CorsSettings};

pub(super) fn read(arguments: &Cors, has_key: bool) -> anyhow::Result<CorsSettings> {
    let origins = arguments.allowed_origins.as_deref().map(list);
    let settings = match origins {
        Some(origins) => CorsSettings::any().with_origins(&origins),
        // A page cannot guess a key, and browsers never send one on their own.
        None if has_key => Ok(CorsSettings::any()),
        None => Ok(CorsSettings::local()),
    };
    let settings = settings
        .and_then(|settings| settings.with_methods(&list(&arguments.allowed_methods)))
        .and_then(|settings| settings.with_headers(&list(&arguments.allowed_headers)))
        .map_err(|error| {
            let hint = match error {
                CorsError::Origin(_) => {
                    "an origin is a scheme, a host and a port: --allowed-origins http://localhost:3000, or * for all"
                }
                CorsError::Name(_) => "write them as `GET,POST`, or * for all",
            };
            Failure::hinted(error.to_string(), hint)
        })?;
    Ok(settings.with_credentials(arguments.allow_credentials))
}

/// A JSON list, as in vLLM, or comma-separated texts.
fn list(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_else(|_| {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(origins: Option<&str>, has_key: bool) -> String {
        let cors = Cors {
            allowed_origins: origins.map(str::to_owned),
            allowed_methods: "*".to_owned(),
            allowed_headers: "*".to_owned(),
            allow_credentials: false,
        };
        read(&cors, has_key).map_or_else(|error| error.to_string(), |cors| cors.describe())
    }

    #[test]
    fn origins_are_a_json_list_or_texts_between_commas() {
        for (given, has_key, want) in [
            (None, false, "this machine"),
            (None, true, "every origin"),
            (Some("*"), false, "every origin"),
            (Some(r#"["*"]"#), false, "every origin"),
            (Some("[]"), true, "no origin"),
            (Some("http://a:1, https://b"), false, "http://a:1, https://b"),
            (Some(r#"["http://a:1","https://b"]"#), true, "http://a:1, https://b"),
            (Some("a:1"), false, "`a:1` is not an origin"),
        ] {
            assert_eq!(describe(given, has_key), want, "{given:?}");
        }
    }
}
