//! Lists and dictionaries that are written as Python writes them, wherever the engine makes text of them.

use super::python;
use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use std::fmt;
use std::sync::Arc;

/// A list.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

/// A dictionary with these keys in this order; of one key the last value counts.
pub(super) fn dictionary(entries: impl IntoIterator<Item = (String, Value)>) -> Value {
    Value::from_object(Dictionary(entries.into_iter().collect()))
}

#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, index: &Value) -> Option<Value> {
        self.0.get(index.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::repr(&Value::from_dyn_object(Arc::clone(self))))
    }
}

/// The engine's own dictionary, which is asked for everything else.
#[derive(Debug)]
struct Dictionary(Value);

impl Object for Dictionary {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.as_object()?.get_value(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.try_iter().into_iter().flatten().collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::repr(&self.0))
    }
}
