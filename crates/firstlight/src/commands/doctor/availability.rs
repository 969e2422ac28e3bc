//! Checks with the package index that the files of remedies exist, before the remedies are shown.

use super::super::plan::libraries;
use super::cache_folder;
use facts::DoctorReport;
use setup::fix::{Availability, check_availability};
use setup::index::{IndexAnswer, IndexClient, IndexError, PYPI, PackageQuery, TargetHost};
use std::time::{Duration, Instant, SystemTime};

/// Seconds without a byte after which the index counts as unreachable: findings are useful without it.
const TIMEOUT: u32 = 3;
/// The time after which all questions of one command end unanswered.
const LIMIT: Duration = Duration::from_secs(20);
/// After an index did not answer, it is not queried again for this long.
const PAUSE: Duration = Duration::from_secs(300);
/// Variables that give uv and pip another index; `--fix` resolves against that one.
const OTHER_INDEX: [&str; 5] =
    ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_CONFIG_FILE", "PIP_INDEX_URL", "PIP_CONFIG_FILE"];

/// Queries the index for all remedies of a report at once, and changes those whose files do not exist.
pub(super) fn check(report: &mut DoctorReport) -> Availability {
    check_availability(report, &ask)
}

fn ask(wanted: &[PackageQuery], host: TargetHost<'_>) -> Result<Vec<IndexAnswer>, String> {
    query(|index| index.offers(wanted, host))
}

/// Queries PyPI, if it may be queried and answered lately.
pub(in super::super) fn query<T>(
    ask: impl FnOnce(&IndexClient<'_>) -> Result<T, IndexError>,
) -> Result<T, String> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if std::env::var("UV_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
    {
        return Err("UV_OFFLINE is set".to_owned());
    }
    if let Some(other) = OTHER_INDEX.into_iter().find(|name| set(name)) {
        return Err(format!("{other} names another index"));
    }
    let cache = cache_folder().ok_or("there is no cache folder")?.join("index");
    let silent = cache.join("unreachable");
    let paused = std::fs::metadata(&silent).and_then(|data| data.modified());
    if paused.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < PAUSE)) {
        return Err(format!("{PYPI} did not answer some minutes ago"));
    }
    let path = std::env::var_os("PATH");
    let python = setup::index::interpreter(path.as_deref()).ok_or("no Python is on PATH")?;
    let index = IndexClient {
        url: PYPI.to_owned(),
        cache,
        python,
        libraries: &libraries::read,
        timeout: TIMEOUT,
        deadline: Some(Instant::now() + LIMIT),
    };
    ask(&index).map_err(|error| {
        if matches!(error, IndexError::Unreadable { .. }) {
            // Without this file the next run waits again, which is harmless.
            let _ = std::fs::write(&silent, "");
        }
        error.to_string()
    })
}
