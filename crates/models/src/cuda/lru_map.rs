//! A map with a size limit in bytes that evicts its least recently used entries.

use std::collections::BTreeMap;

/// The memory of an entry.
pub(super) trait Bytes {
    /// Bytes; may have grown since the entry was added.
    fn bytes(&self) -> u64;
}

/// Entries by key, limited to a total size except for the most recently used entry.
pub(super) struct LruMap<K, V> {
    /// Entries with the time of their last use.
    entries: BTreeMap<K, (V, u64)>,
    most: u64,
    uses: u64,
}

impl<K: Ord + Copy, V: Bytes> LruMap<K, V> {
    /// An empty map of at most `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        Self { entries: BTreeMap::new(), most, uses: 0 }
    }

    pub(super) fn has(&self, key: K) -> bool {
        self.entries.contains_key(&key)
    }

    /// An entry, marked as most recently used.
    pub(super) fn used(&mut self, key: K) -> Option<&mut V> {
        self.uses += 1;
        let (value, used) = self.entries.get_mut(&key)?;
        *used = self.uses;
        Some(value)
    }

    /// An entry, without marking it as used.
    pub(super) fn get(&mut self, key: K) -> Option<&mut V> {
        self.entries.get_mut(&key).map(|(value, _)| value)
    }

    /// Adds an entry as most recently used, and evicts others if needed.
    pub(super) fn keep(&mut self, key: K, value: V) {
        self.uses += 1;
        self.entries.insert(key, (value, self.uses));
        self.trim();
    }

    /// Evicts entries beyond the limit, after entries have grown.
    pub(super) fn trim(&mut self) {
        while self.entries.len() > 1 && self.bytes() > self.most {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used);
            let Some(key) = oldest.map(|(key, _)| *key) else { break };
            self.entries.remove(&key);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entries.values().map(|(value, _)| value.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Bytes for u64 {
        fn bytes(&self) -> u64 {
            *self
        }
    }

    fn held(recent: &LruMap<u32, u64>) -> Vec<u32> {
        (0..9).filter(|key| recent.has(*key)).collect()
    }

    #[test]
    fn least_recently_used_entries_are_evicted() {
        let mut recent = LruMap::new(10);
        for key in 0..3 {
            recent.keep(key, 3);
        }
        assert_eq!((held(&recent), recent.bytes()), (vec![0, 1, 2], 9));
        assert_eq!(recent.used(0), Some(&mut 3));
        recent.keep(3, 4);
        assert_eq!((held(&recent), recent.bytes()), (vec![0, 2, 3], 10));
        // Reading an entry does not mark it as used.
        assert_eq!(recent.get(2), Some(&mut 3));
        recent.keep(4, 1);
        assert_eq!(held(&recent), [0, 3, 4]);
    }

    #[test]
    fn growing_entry_evicts_others() {
        let mut recent = LruMap::new(10);
        (0..3).for_each(|key| recent.keep(key, 3));
        *recent.used(1).unwrap() = 8;
        recent.trim();
        assert_eq!((held(&recent), recent.bytes()), (vec![1], 8));
        *recent.used(1).unwrap() = 80;
        recent.trim();
        assert_eq!(held(&recent), [1], "a graph in flight stays, however large");
    }
}
