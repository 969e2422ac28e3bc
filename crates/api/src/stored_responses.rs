//! Stores responses in memory, for `previous_response_id` and later retrieval.

use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum total size as JSON text, which takes several times as much memory.
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

/// A stored response.
#[derive(Debug, Clone)]
pub(crate) struct StoredResponse {
    /// The document as sent.
    pub(crate) response: Arc<Value>,
    /// The previous turns and its own.
    pub(crate) turns: Vec<Arc<Turn>>,
}

impl StoredResponse {
    /// The conversation up to the response's end.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Value> {
        self.turns.iter().flat_map(|turn| turn.input.iter().chain(&turn.output))
    }

    /// The input of the response itself.
    pub(crate) fn input(&self) -> &[Value] {
        self.turns.last().map_or(&[], |turn| &turn.input)
    }
}

/// The responses, oldest first. If they exceed the limit, the oldest is dropped.
#[derive(Debug)]
pub(crate) struct StoredResponses {
    most: usize,
    total: Arc<AtomicUsize>,
    kept: Mutex<StoredItems>,
}

#[derive(Debug, Default)]
struct StoredItems {
    responses: HashMap<String, StoredResponse>,
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

    fn kept(&self) -> MutexGuard<'_, StoredItems> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: &str) -> Option<StoredResponse> {
        self.kept().responses.get(id).cloned()
    }

    /// Drops a response; returns whether it existed.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut kept = self.kept();
        kept.order.retain(|other| other != id);
        kept.responses.remove(id).is_some()
    }

    /// Stores a response that continues some turns.
    pub(crate) fn insert(
        &self,
        id: &str,
        response: Value,
        (mut turns, input): (Vec<Arc<Turn>>, Vec<Value>),
    ) {
        let output = response["output"].as_array().cloned().unwrap_or_default();
        let text = |items: &[Value]| items.iter().map(|item| item.to_string().len()).sum::<usize>();
        // A response is stored as a document and as a turn, and refers to the previous turns.
        let own = text(&input) + response.to_string().len() + text(&output);
        let size = own + (turns.len() + 1) * size_of::<Arc<Turn>>() + 2 * id.len();
        self.total.fetch_add(size, Ordering::Relaxed);
        turns.push(Arc::new(Turn { input, output, size, total: Arc::clone(&self.total) }));
        let mut kept = self.kept();
        kept.responses
            .insert(id.to_owned(), StoredResponse { response: Arc::new(response), turns });
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
