//! Lists, dictionaries and long numbers that minijinja prints as Python does.

use super::python;
use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use std::fmt;
use std::sync::Arc;

/// A list.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

/// A dictionary with these keys in order; on duplicate keys the last value counts.
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

/// Wraps minijinja's dictionary.
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

/// A number with its digits and its value as a float. If the float is exact, it is an ordinary number.
pub(super) fn number(digits: &str, value: f64) -> Value {
    if !digits.contains(['.', 'e', 'E']) {
        let whole = digits.parse::<i64>().map(Value::from);
        let whole = whole.or_else(|_| digits.parse::<u64>().map(Value::from));
        return whole.unwrap_or_else(|_| Value::from_object(Digits(digits.to_owned())));
    }
    match significant(digits) == significant(&format!("{value:e}")) {
        true => Value::from(value),
        false => Value::from_object(Digits(digits.to_owned())),
    }
}

/// The sign, the digits without zeros at either end, and the exponent of the first digit.
fn significant(number: &str) -> (bool, String, i64) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let whole = whole.trim_start_matches('-');
    let digits = format!("{whole}{fraction}");
    let zeros = digits.len() - digits.trim_start_matches('0').len();
    let digits = digits.trim_matches('0').to_owned();
    let exponent: i64 = exponent.trim_start_matches('+').parse().unwrap_or(i64::MAX / 2);
    let places = i64::try_from(whole.len()).unwrap_or(0) - i64::try_from(zeros).unwrap_or(0);
    let exponent = if digits.is_empty() { 0 } else { exponent.saturating_add(places) };
    (number.starts_with('-'), digits, exponent)
}

/// The text of a number that neither 64 bits nor a float can represent.
#[derive(Debug)]
pub(super) struct Digits(pub(super) String);

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
