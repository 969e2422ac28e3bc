//! Detects unreachable package registries: steps that need them are skipped instead of failing.

/// Messages of pip, uv and Python without a network, or for a registry that is down (5xx).
const UNREACHABLE: [&str; 15] = [
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Connection refused",
    "Connection reset by peer",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "operation timed out",
    "error sending request",
    "dns error",
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Time",
];

/// Whether a command failed because a registry does not answer. A refusal (403) or a missing release is a failure.
pub(crate) fn is_unreachable(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    // Python's urllib: "HTTP Error 503: Service Unavailable".
    UNREACHABLE.iter().any(|mark| text.contains(mark)) || text.contains("HTTP Error 50")
}

#[cfg(test)]
mod tests {
    use super::is_unreachable;
    use anyhow::anyhow;

    #[test]
    fn only_network_errors_and_5xx_are_unreachable() {
        let unreachable = [
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...: Failed to establish a new \
             connection: [Errno -3] Temporary failure in name resolution)': /simple/pip/",
            "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
            "error: Failed to fetch: `simple/torch/`\n  Caused by: error sending request for url",
            "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.",
        ];
        for text in unreachable {
            assert!(is_unreachable(&anyhow!("{text}").context("`pip` ended with 1")), "{text}");
        }
        let ours = [
            "ERROR: Could not find a version that satisfies the requirement pip==25.3",
            "403 Client Error: Forbidden",
            "urllib.error.HTTPError: HTTP Error 404: Not Found",
            "",
        ];
        for text in ours {
            assert!(!is_unreachable(&anyhow!("{text}")), "{text}");
        }
    }
}
