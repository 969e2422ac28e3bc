//! Responses that are kept in memory, for `previous_response_id` and for clients that ask for them later.

use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of all that is kept: as JSON text, which memory holds some times over.
const BYTES: usize = 32 << 20;

/// The items of one turn: input and output. Later turns share them.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) input: Vec<Value>,
    pub(crate) output: Vec<Value>,
    size: usize,
    total: Arc<AtomicUsize>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.total.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// A response that is kept.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// As it was sent.
    pub(crate) response: Arc<Value>,
    /// The turns before it and its own.
    pub(crate) turns: Vec<Arc<Turn>>,
}

impl Stored {
    /// The conversation up to the response's end.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Value> {
        self.turns.iter().flat_map(|turn| turn.input.iter().chain(&turn.output))
    }

    /// What the response itself was asked with.
    pub(crate) fn input(&self) -> &[Value] {
        self.turns.last().map_or(&[], |turn| &turn.input)
    }
}

/// The responses, oldest first. When they are too large, the oldest is dropped.
#[derive(Debug)]
pub(crate) struct StoredResponses {
    most: usize,
    total: Arc<AtomicUsize>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    responses: HashMap<String, Stored>,
    /// Some of these may be deleted already.
    order: VecDeque<String>,
}

impl Default for StoredResponses {
    fn default() -> Self {
        Self::new(BYTES)
    }
}

impl StoredResponses {
    fn new(most: usize) -> Self {
        Self { most, total: Arc::default(), kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Stored> {
        self.kept().responses.get(id).cloned()
    }

    /// Drops a response; whether it was there.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut kept = self.kept();
        kept.order.retain(|other| other != id);
        kept.responses.remove(id).is_some()
    }

    /// Keeps a response that continues some turns.
    pub(crate) fn insert(
        &self,
        id: &str,
        response: Value,
        (mut turns, input): (Vec<Arc<Turn>>, Vec<Value>),
    ) {
        let output = response["output"].as_array().cloned().unwrap_or_default();
        let text = |items: &[Value]| items.iter().map(|item| item.to_string().len()).sum::<usize>();
        // A response is there as a document and as a turn, and refers to the turns before it.
        let own = text(&input) + response.to_string().len() + text(&output);
        let size = own + (turns.len() + 1) * size_of::<Arc<Turn>>() + 2 * id.len();
        self.total.fetch_add(size, Ordering::Relaxed);
        turns.push(Arc::new(Turn { input, output, size, total: Arc::clone(&self.total) }));
        let mut kept = self.kept();
        kept.responses.insert(id.to_owned(), Stored { response: Arc::new(response), turns });
        kept.order.push_back(id.to_owned());
        while self.total.load(Ordering::Relaxed) > self.most {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.responses.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn turns_are_bounded_and_the_oldest_go_first() {
        let stored = StoredResponses::new(10_000);
        let mut turns = Vec::new();
        for number in 0..1000 {
            let id = format!("resp_{number}");
            let response = json!({ "id": id, "output": [{ "text": "y".repeat(100) }] });
            stored.insert(&id, response, (turns, vec![json!({ "text": "x".repeat(100) })]));
            // A new conversation every ten turns.
            turns = match number % 10 {
                9 => Vec::new(),
                _ => stored.get(&id).map_or_else(Vec::new, |stored| stored.turns),
            };
            assert!(stored.total.load(Ordering::Relaxed) <= 10_000 + 1_000);
        }
        let last = stored.get("resp_999").unwrap();
        assert_eq!(last.input().len(), 1);
        assert!(stored.get("resp_0").is_none());
        drop((last, turns));
        assert!(stored.remove("resp_999") && !stored.remove("resp_999"));
        for number in 0..1000 {
            stored.remove(&format!("resp_{number}"));
        }
        assert_eq!(stored.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_conversation_is_the_items_of_its_turns() {
        let stored = StoredResponses::default();
        stored.insert("a", json!({ "output": [2] }), (Vec::new(), vec![json!(1)]));
        let turns = stored.get("a").unwrap().turns;
        stored.insert("b", json!({ "output": [4] }), (turns, vec![json!(3)]));
        assert!(stored.remove("a"));
        let b = stored.get("b").unwrap();
        assert_eq!(
            b.items().cloned().collect::<Vec<_>>(),
            [json!(1), json!(2), json!(3), json!(4)]
        );
        assert_eq!(b.input(), [json!(3)]);
    }
}
