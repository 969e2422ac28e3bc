//! Jinja filters that minijinja lacks or implements differently.
//!
//! Filters that produce HTML (`urlize`, `xmlattr`, `striptags`, `forceescape`, `urlencode`), and `random`, `pprint`,
//! `filesizeformat` and `wordwrap`, are not available: a template that uses one is refused with its name.

use super::methods::{self, wrong};
use super::python;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

/// Adds the filters and removes those that Jinja does not have.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("round", round);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("trim", trim);
    environment.add_filter("indent", indent);
    environment.add_filter("center", center);
    environment.add_filter("capitalize", capitalize);
    environment.add_filter("sum", sum);
    // Keys of a dictionary are not attributes of it.
    environment.add_filter("attr", |value: &Value, name: &str| match value.kind() {
        ValueKind::Map => Ok(Value::UNDEFINED),
        _ => value.get_attr(name),
    });
    environment.add_filter("replace", replace);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", wordcount);
    for own in ["bool", "chain", "lines", "pprint", "split", "zip"] {
        environment.remove_filter(own);
    }
}

fn attribute(value: Value, name: Option<&Value>) -> Result<Value, Error> {
    let Some(name) = name else { return Ok(value) };
    // `a.b` is looked up part by part, as Jinja does.
    match name.as_str() {
        Some(path) => path.split('.').try_fold(value, |value, part| match part.parse::<usize>() {
            Ok(index) => value.get_item(&Value::from(index)),
            Err(_) => value.get_attr(part),
        }),
        None => value.get_item(name),
    }
}

fn join(
    value: &Value,
    between: Option<Value>,
    name: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let between = between.or(named.get("d")?).map(|between| python::text(&between));
    let name = name.or(named.get("attribute")?);
    named.assert_all_used()?;
    let text = |item: Value| Ok(python::text(&attribute(item, name.as_ref())?));
    let items: Result<Vec<String>, Error> = value.try_iter()?.map(text).collect();
    Ok(items?.join(between.as_deref().unwrap_or_default()))
}

fn int(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or_else(|| Value::from(0));
    let base = named.get::<Option<u32>>("base")?.unwrap_or(10);
    named.assert_all_used()?;
    if let Some(text) = value.as_str() {
        let text = text.trim_matches(python::is_space).replace('_', "");
        let whole = i128::from_str_radix(&text, base.clamp(2, 36)).ok();
        let cut = || {
            text.parse::<f64>()
                .ok()
                .filter(|number| number.is_finite())
                .map(|number| number as i128)
        };
        return Ok(whole.or_else(cut).map_or(default, Value::from));
    }
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(u8::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if number.is_finite() => Value::from(number as i128),
            _ => default,
        },
        _ => default,
    })
}

fn float(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or_else(|| Value::from(0.0));
    named.assert_all_used()?;
    let number = match (value.as_str(), value.kind()) {
        (Some(text), _) => text.trim_matches(python::is_space).parse().ok(),
        (None, ValueKind::Bool) => Some(f64::from(u8::from(value.is_true()))),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    Ok(number.map_or(default, Value::from))
}

fn round(
    value: Value,
    precision: Option<i32>,
    method: Option<String>,
    named: Kwargs,
) -> Result<Value, Error> {
    let precision = precision.or(named.get("precision")?).unwrap_or(0);
    let method = method.or(named.get("method")?);
    named.assert_all_used()?;
    let whole = value.is_integer();
    let number = f64::try_from(value.clone())?;
    let scale = 10f64.powi(precision);
    let rounded = match method.as_deref().unwrap_or("common") {
        // Rounds half to even. The number's exact digits decide what is a half.
        "common" if whole && precision >= 0 => return Ok(value),
        "common" => match usize::try_from(precision) {
            Ok(precision) => format!("{number:.precision$}").parse().unwrap_or(number),
            Err(_) => (number * scale).round_ties_even() / scale,
        },
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        _ => return Err(wrong("method must be common, ceil or floor")),
    };
    Ok(Value::from(rounded))
}

fn length(value: &Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        kind => value.len().ok_or_else(|| wrong(format!("object of type {kind} has no length"))),
    }
}

fn default(value: &Value, arguments: Rest<Value>) -> Result<Value, Error> {
    let (named, plain): (Vec<_>, Vec<_>) = arguments.iter().partition(|value| value.is_kwargs());
    let named = match named.first() {
        Some(named) => Kwargs::try_from((*named).clone())?,
        None => Kwargs::from_iter(std::iter::empty::<(String, Value)>()),
    };
    let other = plain.first().map(|other| (*other).clone()).or(named.get("default_value")?);
    let lax = plain.get(1).map(|lax| (*lax).clone()).or(named.get("boolean")?);
    named.assert_all_used()?;
    let lax = lax.is_some_and(|lax| lax.is_true());
    let missing = value.is_undefined() || (lax && !value.is_true());
    Ok(if missing { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

fn trim(value: &Value, chars: Option<String>) -> String {
    let text = python::text(value);
    let strips =
        |c: char| chars.as_ref().map_or_else(|| python::is_space(c), |all| all.contains(c));
    text.trim_matches(strips).to_owned()
}

fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = width.or(named.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let by = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(width)?),
    };
    let text = python::text(value) + "\n";
    let line = |(at, line): (usize, &str)| match at {
        0 if first => format!("{by}{line}"),
        0 => line.to_owned(),
        _ if line.is_empty() && !blank => String::new(),
        _ => format!("{by}{line}"),
    };
    let lines = methods::lines(&text, false);
    Ok(lines.into_iter().enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

fn center(value: &Value, width: Option<usize>) -> String {
    let (text, width) = (python::text(value), width.unwrap_or(80));
    let lacking = width.saturating_sub(text.chars().count());
    let before = lacking / 2 + (lacking & width & 1);
    format!("{}{text}{}", " ".repeat(before), " ".repeat(lacking - before))
}

fn capitalize(value: &Value) -> String {
    let text = python::text(value);
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

fn sum(
    value: &Value,
    name: Option<Value>,
    start: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let name = name.or(named.get("attribute")?).filter(|name| !name.is_none());
    let start = start.or(named.get("start")?).unwrap_or_else(|| Value::from(0));
    named.assert_all_used()?;
    let mut whole =
        Some(i128::try_from(start.clone()).ok()).flatten().filter(|_| start.is_integer());
    let mut sum = f64::try_from(start)?;
    for item in value.try_iter()? {
        let item = attribute(item, name.as_ref())?;
        let integer = item.is_integer() || item.kind() == ValueKind::Bool;
        whole = match (whole, i128::try_from(item.clone())) {
            (Some(whole), Ok(item)) if integer => whole.checked_add(item),
            _ => None,
        };
        sum += f64::try_from(item)?;
    }
    Ok(whole.map_or(Value::from(sum), Value::from))
}

fn wordcount(value: &Value) -> usize {
    let text = python::text(value);
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<i64>) -> String {
    let (text, [old, new]) = (python::text(value), [old, new].map(python::text));
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    }
}

fn truncate(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    let (named, plain): (Vec<_>, Vec<_>) = arguments.iter().partition(|value| value.is_kwargs());
    let named = match named.first() {
        Some(named) => Kwargs::try_from((*named).clone())?,
        None => Kwargs::from_iter(std::iter::empty::<(String, Value)>()),
    };
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(plain.get(at).map(|value| (*value).clone()).or(named.get(name)?))
    };
    let number = |value: Option<Value>, usual: usize| value.map_or(Ok(usual), usize::try_from);
    let length = number(argument(0, "length")?, 255)?;
    let cuts_words = argument(1, "killwords")?.is_some_and(|cuts| cuts.is_true());
    let end = argument(2, "end")?.map_or_else(|| "...".to_owned(), |end| python::text(&end));
    let leeway = number(argument(3, "leeway")?, 5)?;
    named.assert_all_used()?;
    let text = python::text(value);
    if text.chars().count() <= length + leeway {
        return Ok(text);
    }
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| wrong("truncate is shorter than its end"))?;
    let cut: String = text.chars().take(kept).collect();
    let whole = if cuts_words {
        &cut
    } else {
        cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words)
    };
    Ok(format!("{whole}{end}"))
}
