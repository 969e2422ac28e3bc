//! The Jinja environment of chat templates: `_compile_jinja_template` in transformers' utils/chat_template_utils.py.

use super::python::{self, JsonDumps};
use super::strftime::strftime;
use super::{filters, methods};
use methods::wrong;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, Value};
use std::fmt;
use time::OffsetDateTime;

/// Maximum instructions for a conversation. A message takes some hundreds.
const INSTRUCTIONS: u64 = 20_000_000;

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(INSTRUCTIONS));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| {
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&python::text(value)),
        };
        written.map_err(|fmt::Error| wrong("a value could not be written"))
    });
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("raise_exception", |message: String| Err::<String, _>(wrong(message)));
    environment.add_function("strftime_now", |format: &str| {
        strftime(OffsetDateTime::now_utc(), format).map_err(wrong)
    });
    environment.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.to_vec())
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    // Extensions of minijinja are removed: Jinja does not have them.
    environment.remove_global("debug");
    environment.add_filter("tojson", to_json);
    filters::add(&mut environment);
    tests(&mut environment);
    environment
}

/// transformers' `tojson`: `json.dumps` without HTML escaping.
fn to_json(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let ensure_ascii = ensure_ascii.or(named.get("ensure_ascii")?).unwrap_or(false);
    let indent = indent.or(named.get("indent")?).filter(|indent| !indent.is_none());
    let indent = match indent {
        None => None,
        Some(indent) => match (indent.as_str(), i64::try_from(indent.clone())) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Ok(spaces)) => Some(" ".repeat(usize::try_from(spaces).unwrap_or(0).min(64))),
            (None, Err(error)) => return Err(error),
        },
    };
    let separators = match named.get::<Option<Vec<String>>>("separators")? {
        Some(two) => two.try_into().map_err(|_| wrong("separators are two strings"))?,
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
    };
    let sort_keys = named.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    named.assert_all_used()?;
    JsonDumps { ensure_ascii, indent, separators, sort_keys }.text(value)
}

/// Tests whose meaning in Jinja differs from minijinja's.
fn tests(environment: &mut Environment<'static>) {
    use ValueKind::{Bool, Iterable, Map, Number, Seq, String, Undefined};
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), Seq | Iterable | Map | String | Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), Seq | Iterable | Map | String | Undefined)
    });
    environment.add_test("number", |value: &Value| matches!(value.kind(), Number | Bool));
    environment.add_test("callable", |value: &Value| {
        value.kind() == ValueKind::Plain || value.is_undefined()
    });
    for own in ["startingwith", "endingwith", "safe"] {
        environment.remove_test(own);
    }
    environment.add_test("lower", |value: &Value| methods::is_cased(&python::text(value), false));
    environment.add_test("upper", |value: &Value| methods::is_cased(&python::text(value), true));
}
