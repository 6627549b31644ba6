//! Compiled forms, kept within a bound of bytes; the one that was not asked for the longest goes first.

use std::collections::HashMap;

/// Values by text, and how many bytes they take.
pub(super) struct Cache<T> {
    entries: HashMap<String, Entry<T>>,
    bytes: usize,
    capacity: usize,
    clock: u64,
}

struct Entry<T> {
    value: T,
    bytes: usize,
    used: u64,
}

impl<T: Clone> Cache<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: HashMap::new(),
            bytes: 0,
            capacity,
            clock: 0,
        }
    }

    pub(super) fn get(&mut self, key: &str) -> Option<T> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(entry.value.clone())
    }

    /// Keeps a value of so many bytes, if there is room for it at all.
    pub(super) fn put(&mut self, key: String, value: T, bytes: usize) {
        let bytes = bytes + key.len();
        if bytes > self.capacity {
            return;
        }
        self.clock += 1;
        let used = self.clock;
        let entry = Entry { value, bytes, used };
        self.bytes += bytes;
        self.bytes -= self.entries.insert(key, entry).map_or(0, |old| old.bytes);
        while self.bytes > self.capacity {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |entry| entry.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_asked_for_the_longest_makes_room() {
        let mut cache = Cache::new(32);
        for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
            cache.put(key.to_owned(), value, 9);
        }
        assert_eq!(cache.get("a"), Some(1));
        cache.put("d".to_owned(), 4, 9);
        assert_eq!(cache.get("b"), None);
        assert_eq!((cache.get("a"), cache.get("c")), (Some(1), Some(3)));
        cache.put("e".to_owned(), 5, 25);
        assert_eq!((cache.get("a"), cache.get("c")), (None, None));
        assert_eq!(cache.get("e"), Some(5));
        cache.put("f".to_owned(), 6, 40);
        assert_eq!((cache.get("e"), cache.get("f")), (Some(5), None));
        cache.put("e".to_owned(), 7, 5);
        assert_eq!((cache.get("e"), cache.bytes), (Some(7), 6));
    }
}
