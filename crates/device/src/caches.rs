//! Cache sizes of a device.

use crate::Device;
use std::collections::BTreeMap;
use std::path::Path;

/// Total cache sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheSizes {
    /// The L2 caches of all cores.
    pub inner_bytes: u64,
    /// The last-level caches, which cores share. A virtual machine shares them with other machines.
    pub outer_bytes: u64,
}

impl CacheSizes {
    /// The sizes that a backend reports for its device, or else those of the processor; zero if unknown.
    pub fn of(device: &Device) -> Self {
        let of_cores = || Self::of_cores(Path::new("/sys/devices/system/cpu"));
        device.extension().copied().unwrap_or_else(of_cores)
    }

    /// Bytes that a second pass over memory has to read from memory again: several times the last-level cache, and at
    /// least `least`.
    pub fn exceeding(&self, least: usize) -> usize {
        const TIMES: u64 = 4;
        usize::try_from(TIMES * self.outer_bytes).map_or(least, |bytes| bytes.max(least))
    }

    /// Counts each cache once, even if several cores share it.
    fn of_cores(folder: &Path) -> Self {
        let word =
            |path: &Path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut all: BTreeMap<(String, String), u64> = BTreeMap::new();
        for core in entries(folder) {
            for cache in entries(&core.path().join("cache")) {
                let cache = cache.path();
                if word(&cache.join("type")) == "Instruction" {
                    continue;
                }
                let bytes = kibibytes(&word(&cache.join("size"))) << 10;
                let place = (word(&cache.join("level")), word(&cache.join("shared_cpu_list")));
                all.insert(place, bytes);
            }
        }
        let of_level = |wanted: &str| {
            all.iter().filter(|((level, _), _)| level == wanted).map(|(_, bytes)| bytes).sum()
        };
        Self { inner_bytes: of_level("2"), outer_bytes: of_level("3") }
    }
}

/// Parses `2048K`, the kernel's format of cache sizes.
fn kibibytes(text: &str) -> u64 {
    text.strip_suffix('K').and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_cores_share_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let caches = [
            ("cpu0/cache/index0", ["1", "Data", "48K", "0"]),
            ("cpu0/cache/index1", ["2", "Unified", "2048K", "0"]),
            ("cpu0/cache/index2", ["3", "Unified", "266240K", "0-1"]),
            ("cpu1/cache/index1", ["2", "Unified", "2048K", "1"]),
            ("cpu1/cache/index2", ["3", "Unified", "266240K", "0-1"]),
            ("cpufreq/cache/none", ["", "", "", ""]),
        ];
        for (name, values) in caches {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            for (file, value) in ["level", "type", "size", "shared_cpu_list"].iter().zip(values) {
                std::fs::write(path.join(file), format!("{value}\n")).unwrap();
            }
        }
        let expect = CacheSizes { inner_bytes: 4 << 20, outer_bytes: 260 << 20 };
        assert_eq!(CacheSizes::of_cores(folder.path()), expect);
        assert_eq!(expect.exceeding(256 << 20), 1040 << 20);
        assert_eq!(CacheSizes::default().exceeding(256 << 20), 256 << 20);
        assert_eq!(CacheSizes::of_cores(Path::new("/nowhere")), CacheSizes::default());
    }
}
