//! How much the caches of a device hold together.

use crate::Device;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes that caches hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Caches {
    /// The second-level caches: what fits is not fetched from memory again.
    pub inner_bytes: u64,
    /// The caches that several cores share. In a virtual machine they are shared with others, too.
    pub outer_bytes: u64,
}

impl Caches {
    /// Those of a device; nothing where it does not tell.
    pub fn of(device: &Device) -> Self {
        match &device.capabilities().cuda {
            Some(cuda) => Self { inner_bytes: u64::from(cuda.l2_bytes), outer_bytes: 0 },
            None => Self::of_cores(Path::new("/sys/devices/system/cpu")),
        }
    }

    /// Bytes that a walk needs for its second pass to come from memory again: several times what the caches that cores share hold,
    /// and at least `least`.
    pub fn overflowing(&self, least: usize) -> usize {
        const TIMES: u64 = 4;
        usize::try_from(TIMES * self.outer_bytes).map_or(least, |bytes| bytes.max(least))
    }

    /// Each cache once, however many cores share it.
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

/// `2048K`, as the kernel writes sizes of caches.
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
        let expect = Caches { inner_bytes: 4 << 20, outer_bytes: 260 << 20 };
        assert_eq!(Caches::of_cores(folder.path()), expect);
        assert_eq!(expect.overflowing(256 << 20), 1040 << 20);
        assert_eq!(Caches::default().overflowing(256 << 20), 256 << 20);
        assert_eq!(Caches::of_cores(Path::new("/nowhere")), Caches::default());
    }
}
