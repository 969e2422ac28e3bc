//! Downloads that fail: HTTP statuses and their hosts, gated repositories, DNS, proxies, certificates and timeouts.

use super::{Entity, Form, form};
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("You are trying to access a gated repo", gated),
        form("Cannot access gated repo for url", gated),
        form("GatedRepoError*", gated),
        form("is restricted. You must have access to it and be authenticated", gated),
        form("is not in the authorized list", gated),
        form("RepositoryNotFoundError*", not_found),
        form("is not a local folder and is not a valid model identifier", not_found),
        form("RevisionNotFoundError*", not_found),
        form("EntryNotFoundError*", not_found),
        form("{status} Client Error", status),
        form("{status} Server Error", status),
        form("HTTP Error {status}: ", status),
        form("HTTP error {status} ", status),
        form("status code {status} for url", status),
        form("returned error: {status}", status),
        form("HTTP status client error ({status}", status),
        form("HTTP status server error ({status}", status),
        form("We couldn't connect to '{host}'", offline),
        form("LocalEntryNotFoundError*", offline),
        form("offline mode is enabled", offline),
        form("Name or service not known", dns),
        form("Temporary failure in name resolution", dns),
        form("NameResolutionError*", dns),
        form("Could not resolve host: {host}", dns),
        form("nodename nor servname provided", dns),
        form("dns error: failed to lookup address information", dns),
        form("CERTIFICATE_VERIFY_FAILED", certificate),
        form("SSLCertVerificationError", certificate),
        form("invalid peer certificate", certificate),
        form("self-signed certificate in certificate chain", certificate),
        form("SSL certificate problem", certificate),
        form("Cannot connect to proxy", proxy),
        form("Tunnel connection failed: {status}", proxy),
        form("ProxyError*", proxy),
        form("Proxy Authentication Required", proxy),
        form("HTTPSConnectionPool(host='{host}', port=443): Read timed out", timeout),
        form("HTTPSConnectionPool(host='{host}', port={port}): Max retries exceeded", timeout),
        form("Connection to {host} timed out", timeout),
        form("ReadTimeoutError*", timeout),
        form("ConnectTimeoutError*", timeout),
        form("operation timed out*error sending request for url", timeout),
        form("error sending request for url ({host})", timeout),
        form("Failed to download distribution due to network timeout", timeout),
        form("IncompleteRead(", broken),
        form("Remote end closed connection without response", broken),
        form("('Connection aborted.', ", broken),
        form("Connection broken: ", broken),
        form("ConnectionResetError(104", broken),
        form("Consistency check failed: file should be of size", broken),
    ]
}

/// The host of the first address in the text, or of a word.
fn host(seen: &PastedError) -> String {
    let of = |word: &str| {
        let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
        rest.split(['/', ':', ')', '\'', ' ', ','])
            .next()
            .unwrap_or(rest)
            .trim_end_matches('.')
            .to_owned()
    };
    if let Some(word) = seen.word("host") {
        return of(word);
    }
    if let Some(at) = seen.text.find("host='") {
        return of(seen.text[at + 6..].split('\'').next().unwrap_or(""));
    }
    seen.text.find("://").map_or(String::new(), |at| of(&seen.text[at + 3..]))
}

fn of_hub(host: &str, seen: &PastedError) -> bool {
    host.ends_with("huggingface.co") || host.ends_with("hf.co") || seen.text.contains("huggingface")
}

const LOGIN: [&str; 3] = [
    "hf auth login  # or: export HF_TOKEN=hf_...",
    "hf auth whoami",
    "# then accept the model's terms on its page with that account",
];

fn gated(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let denied = seen.text.contains("403") || seen.text.contains("authorized list");
    let why = match denied {
        true => {
            "The token is valid, and its account has not been granted access, or a fine-grained token lacks the permission for gated repositories."
        }
        false => "No token was sent, or one that is not valid.",
    };
    Some(
        Entity::new("http", "gated repository")
            .meaning(format!("The model's repository is gated: its owner asks for accepted terms and a token of the account that accepted them. {why}"))
            .fix(LOGIN)
            .rank(5),
    )
}

fn not_found(seen: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("http", "repository not found")
            .meaning(
                "The hub has no such repository, revision or file, or it is private and the token gives no access (the hub answers both in the same way). Check the spelling of \
                 owner/name; for a local model, check that the folder exists where the program starts.",
            )
            .fix(["hf auth whoami", "hf download OWNER/NAME config.json"])
            .rank(if seen.text.contains("gated") { 1 } else { 3 }),
    )
}

fn status(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let word = seen.word("status")?;
    let digits: String = word
        .chars()
        .rev()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .chars()
        .rev()
        .collect();
    let leading: String = word.chars().take_while(char::is_ascii_digit).collect();
    let number: u32 =
        if leading.len() == 3 { leading.parse().ok()? } else { digits.parse().ok()? };
    (400..=599).contains(&number).then_some(())?;
    let host = host(seen);
    let hub = of_hub(&host, seen);
    if hub && seen.text.contains("gated") {
        return gated(seen, "");
    }
    let at = if host.is_empty() { String::new() } else { format!(" from {host}") };
    let (meaning, fix): (&str, Vec<String>) = match (number, hub) {
        (401, true) => (
            "no valid token was sent for a private, gated or misspelt repository (the hub answers 401 for a name that does not exist, too)",
            LOGIN.map(str::to_owned).to_vec(),
        ),
        (401, false) => ("the server asks for credentials that were not sent or are not valid", vec!["# user and password or token for this host: ~/.netrc, or the index's URL; uv: UV_INDEX_NAME_USERNAME".into()]),
        (403, true) => ("the token's account has no access to this repository, or the network blocks the host", LOGIN.map(str::to_owned).to_vec()),
        (403, false) => ("the server or a proxy refuses access: an address without such a file (object stores answer 403 for it), a blocked country or client, or missing rights", vec![format!("curl -sI https://{}", if host.is_empty() { "HOST" } else { &host })]),
        (404, true) => ("the hub has no such repository, revision or file", vec!["hf download OWNER/NAME config.json".into()]),
        (404, false) => ("the file does not exist at that address: a wheel of this version, Python, CUDA or torch was not published, or the index has another name", vec!["# open the address's folder in a browser and compare the names".into()]),
        (407, _) => ("a proxy asks for credentials", vec!["env | grep -i _proxy".into()]),
        (408 | 504, _) => ("the server or a proxy waited too long", vec!["# try again".into()]),
        (416, _) => ("a partial file in the cache is longer than the file on the server", vec!["# remove the incomplete file (*.incomplete) from the cache and try again".into()]),
        (429, _) => ("too many requests were sent: the server limits them for each address, and less strictly with a token", vec!["# wait, then try again with a token (HF_TOKEN) and fewer workers".into()]),
        (500..=599, _) => ("the server failed", vec!["# try again later; a status page of the host tells more".into()]),
        _ => ("the server refuses the request", Vec::new()),
    };
    Some(
        Entity::new("http", format!("HTTP {number}{at}"))
            .meaning(format!("HTTP {number}{at}: {meaning}."))
            .fix(fix)
            .rank(3),
    )
}

fn offline(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let host = host(seen);
    let shown = if host.is_empty() { "the hub".to_owned() } else { host };
    Some(
        Entity::new("network", format!("no connection to {shown}"))
            .meaning(format!(
                "The files are not in the cache, and {shown} cannot be reached: no network, a proxy that is not set, a node without access to the Internet, or HF_HUB_OFFLINE. \
                 Download where there is a network, and copy the cache or the folder."
            ))
            .fix([
                "curl -sI https://huggingface.co | head -1",
                "env | grep -iE '_proxy|HF_HUB_OFFLINE|HF_ENDPOINT|HF_HOME'",
                "hf download OWNER/NAME --local-dir NAME  # where there is a network; then give the folder",
            ])
            .rank(3),
    )
}

fn dns(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let host = host(seen);
    let shown = if host.is_empty() { "a host".to_owned() } else { host.clone() };
    let url = if host.is_empty() { "HOST".to_owned() } else { host };
    Some(
        Entity::new("network", format!("name resolution of {shown}"))
            .meaning(format!(
                "The name of {shown} cannot be resolved: there is no network or no DNS server here (a node or container without access to the Internet), or the name is wrong."
            ))
            .fix([format!("getent hosts {url}"), "cat /etc/resolv.conf".into(), "env | grep -i _proxy  # with a proxy, the proxy resolves names".into()])
            .rank(3),
    )
}

fn certificate(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let host = host(seen);
    Some(
        Entity::new("network", if host.is_empty() { "TLS certificate".to_owned() } else { format!("TLS certificate of {host}") })
            .meaning(
                "The certificate of the server is not trusted: a proxy of the company that opens TLS connections with its own certificate, an old certificate store, or a wrong \
                 clock. Add the company's certificate to the store; turning the check off lets anybody replace the files.",
            )
            .fix([
                "export SSL_CERT_FILE=/path/to/company-ca.pem REQUESTS_CA_BUNDLE=/path/to/company-ca.pem",
                "uv --system-certs pip install ...  # uv with the system's store; older releases: --native-tls",
                "sudo update-ca-certificates; date",
            ])
            .rank(4),
    )
}

fn proxy(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("network", "proxy")
            .meaning("The connection goes through a proxy, which refuses it or cannot be reached. The variables below name it; hosts in NO_PROXY are reached directly.")
            .fix(["env | grep -i _proxy", "export HTTPS_PROXY=http://USER:PASSWORD@PROXY:PORT", "unset HTTPS_PROXY https_proxy  # without one"])
            .rank(4),
    )
}

fn timeout(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let host = host(seen);
    if seen.text.contains("resol") && seen.text.to_ascii_lowercase().contains("name") {
        return dns(seen, "");
    }
    if seen.text.contains("CERTIFICATE_VERIFY_FAILED") {
        return certificate(seen, "");
    }
    let shown = if host.is_empty() { "the server".to_owned() } else { host };
    Some(
        Entity::new("network", format!("timeout of {shown}"))
            .meaning(format!("{shown} could not be reached or did not answer in time: a slow or blocked connection, a proxy that is not set, or large files with a short time limit."))
            .fix([
                format!("curl -sI https://{shown} | head -1"),
                "env | grep -i _proxy".into(),
                "export UV_HTTP_TIMEOUT=300 HF_HUB_DOWNLOAD_TIMEOUT=60  # pip: --timeout 60".into(),
            ])
            .rank(2),
    )
}

fn broken(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("network", "interrupted download")
            .meaning("The connection ended in the middle of a file. The file in the cache is incomplete; the same command resumes or downloads it again.")
            .fix(["# run the command again; where it repeats, remove the incomplete file from the cache"])
            .rank(2),
    )
}
