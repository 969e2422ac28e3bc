//! Checks with package indexes that the files of remedies exist, before the remedies are shown.

use super::super::plan::libraries;
use super::cache_folder;
use facts::DoctorReport;
use setup::fix::{Availability, check_availability};
use setup::index::{IndexClient, IndexError, PYPI, PackageQuery, TargetHost};
use std::time::{Duration, Instant, SystemTime};

/// Seconds without a byte after which an index counts as unreachable: findings are useful without it.
const TIMEOUT: u32 = 3;
/// The time after which all questions of one command end unanswered.
const LIMIT: Duration = Duration::from_secs(20);
/// After an index did not answer, it is not queried again for this long.
const PAUSE: Duration = Duration::from_secs(300);
/// Variables that give uv and pip another index; `--fix` resolves against that one.
const OTHER_INDEX: [&str; 5] =
    ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_CONFIG_FILE", "PIP_INDEX_URL", "PIP_CONFIG_FILE"];

/// Queries each index for all remedies of a report at once, and changes those whose files do not exist.
pub(super) fn check(report: &mut DoctorReport) -> Availability {
    let deadline = Instant::now() + LIMIT;
    let ask = |index: Option<&str>, wanted: &[PackageQuery], host: TargetHost<'_>| {
        query_index(index, deadline, |index| index.offers(wanted, host))
    };
    check_availability(report, &ask)
}

/// Queries PyPI, if it may be queried and answered lately.
pub(in super::super) fn query<T>(
    ask: impl FnOnce(&IndexClient<'_>) -> Result<T, IndexError>,
) -> Result<T, String> {
    query_index(None, Instant::now() + LIMIT, ask)
}

/// Queries an index by its address, or PyPI.
fn query_index<T>(
    address: Option<&str>,
    deadline: Instant,
    ask: impl FnOnce(&IndexClient<'_>) -> Result<T, IndexError>,
) -> Result<T, String> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if std::env::var("UV_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
    {
        return Err("UV_OFFLINE is set".to_owned());
    }
    // A configuration file may forbid every index.
    let applies = |name: &&str| address.is_none() || name.ends_with("_CONFIG_FILE");
    if let Some(other) = OTHER_INDEX.into_iter().filter(applies).find(|name| set(name)) {
        return Err(format!("{other} names another index"));
    }
    let mut cache = cache_folder().ok_or("there is no cache folder")?.join("index");
    if let Some(address) = address {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        cache = cache.join("others").join(address.chars().map(plain).collect::<String>());
    }
    let url = address.unwrap_or(PYPI).trim_end_matches('/').to_owned();
    let silent = cache.join("unreachable");
    let paused = std::fs::metadata(&silent).and_then(|data| data.modified());
    if paused.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < PAUSE)) {
        return Err(format!("{url} did not answer some minutes ago"));
    }
    let path = std::env::var_os("PATH");
    let python = setup::index::interpreter(path.as_deref()).ok_or("no Python is on PATH")?;
    let index = IndexClient {
        url,
        cache,
        python,
        libraries: &libraries::read,
        timeout: TIMEOUT,
        deadline: Some(deadline),
    };
    ask(&index).map_err(|error| {
        if matches!(error, IndexError::Unreadable { .. }) {
            // Without this file the next run waits again, which is harmless.
            let _ = silent.parent().map(std::fs::create_dir_all);
            let _ = std::fs::write(&silent, "");
        }
        error.to_string()
    })
}
