//! Methods of Python's strings, lists and dictionaries that minijinja's crate lacks or implements differently.
//!
//! Mutating methods are left out: transformers' sandbox refuses them as well.

use super::python;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Called by the environment for unknown methods.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_string(text, method, arguments)?,
        (None, ValueKind::Map) if method == "copy" => {
            let () = from_args(arguments)?;
            Some(value.clone())
        }
        (None, ValueKind::Seq | ValueKind::Iterable) => of_list(value, method, arguments)?,
        _ => None,
    };
    match own {
        Some(value) => Ok(value),
        None => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

fn of_list(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => {
            let () = from_args(arguments)?;
            value.clone()
        }
        "index" => {
            let (what,): (&Value,) = from_args(arguments)?;
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(Value::from)
                .ok_or_else(|| wrong(format!("{} is not in list", python::repr(what))))?
        }
        "count" => {
            let (what,): (&Value,) = from_args(arguments)?;
            Value::from(value.try_iter()?.filter(|item| item == what).count())
        }
        _ => return Ok(None),
    }))
}

fn of_string(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let lengthened = |fill: &dyn Fn(usize) -> (usize, usize)| {
        let (width, fill_char): (usize, Option<&str>) = from_args(arguments)?;
        let lacking = width.saturating_sub(text.chars().count());
        let (before, after) = fill(lacking);
        let fill = fill_char.unwrap_or(" ");
        Ok::<_, Error>(Value::from(format!("{}{text}{}", fill.repeat(before), fill.repeat(after))))
    };
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(arguments)?;
            let strips = |c: char| chars.map_or_else(|| python::is_space(c), |all| all.contains(c));
            Value::from(match method {
                "strip" => text.trim_matches(strips),
                "lstrip" => text.trim_start_matches(strips),
                _ => text.trim_end_matches(strips),
            })
        }
        "split" | "rsplit" => {
            let (separator, most, named): (Option<&Value>, Option<i64>, Kwargs) =
                from_args(arguments)?;
            let separator = match separator {
                Some(separator) => Some(separator.clone()),
                None => named.get::<Option<Value>>("sep")?,
            };
            let most = most.or(named.get("maxsplit")?).and_then(|most| usize::try_from(most).ok());
            named.assert_all_used()?;
            let separator = separator.filter(|separator| !separator.is_none());
            let pieces = split(text, separator.as_ref(), most, method == "rsplit")?;
            pieces.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep, named): (Option<bool>, Kwargs) = from_args(arguments)?;
            let keep = keep.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
            let (from, part) = part(text, start, end);
            if method == "count" {
                let empty = || part.chars().count() + 1;
                let found = if what.is_empty() { empty() } else { part.matches(what).count() };
                return Ok(Some(Value::from(found)));
            }
            let at = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
            match at {
                Some(at) => Value::from(from + part[..at].chars().count()),
                None if method.ends_with("find") => Value::from(-1),
                None => return Err(wrong("substring not found")),
            }
        }
        "join" => {
            let (items,): (&Value,) = from_args(arguments)?;
            let string = |(at, item): (usize, Value)| {
                let text = item.as_str().map(str::to_owned);
                let what =
                    || format!("sequence item {at}: expected str instance, {} found", item.kind());
                text.ok_or_else(|| wrong(what()))
            };
            let items: Result<Vec<_>, Error> = items.try_iter()?.enumerate().map(string).collect();
            Value::from(items?.join(text))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let last = method == "rpartition";
            let cut = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let three = match cut {
                Some((before, after)) => [before, separator, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            three.into_iter().map(Value::from).collect()
        }
        "ljust" => lengthened(&|lacking| (0, lacking))?,
        "rjust" => lengthened(&|lacking| (lacking, 0))?,
        "center" => {
            let (width, _): (usize, Option<&str>) = from_args(arguments)?;
            // Python puts the larger half of an odd padding at the end, unless the width is odd.
            lengthened(&|lacking| {
                let before = lacking / 2 + (lacking & width & 1);
                (before, lacking - before)
            })?
        }
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let sign = text.len() - text.trim_start_matches(['+', '-']).len();
            let (sign, digits) = text.split_at(sign.min(1));
            let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
            Value::from(format!("{sign}{zeros}{digits}"))
        }
        "title" => {
            let () = from_args(arguments)?;
            Value::from(titled(text))
        }
        "capitalize" => {
            let () = from_args(arguments)?;
            let mut chars = text.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            Value::from(first + &chars.as_str().to_lowercase())
        }
        "swapcase" => {
            let () = from_args(arguments)?;
            let swap = |c: char| {
                let upper = c.is_uppercase();
                if upper { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => {
            let () = from_args(arguments)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "islower" | "isupper" => {
            let () = from_args(arguments)?;
            Value::from(is_cased(text, method == "isupper"))
        }
        "isspace" | "isalpha" | "isalnum" | "isdigit" | "isnumeric" | "isdecimal" => {
            let () = from_args(arguments)?;
            let is = match method {
                "isspace" => python::is_space,
                "isalpha" => char::is_alphabetic,
                "isalnum" => char::is_alphanumeric,
                _ => char::is_numeric,
            };
            Value::from(!text.is_empty() && text.chars().all(is))
        }
        _ => return Ok(None),
    }))
}

/// Whether there is a cased character, and all cased characters have this case.
pub(super) fn is_cased(text: &str, upper: bool) -> bool {
    let any_upper = text.chars().any(char::is_uppercase);
    let any_lower = text.chars().any(char::is_lowercase);
    if upper { any_upper && !any_lower } else { any_lower && !any_upper }
}

/// A slice of a text by character positions, negative ones from its end, and its start.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> (usize, &str) {
    let count = text.chars().count();
    let place = |place: i64| match usize::try_from(place) {
        Ok(place) => place.min(count),
        Err(_) => count.saturating_sub(usize::try_from(place.unsigned_abs()).unwrap_or(count)),
    };
    let (start, end) = (start.map_or(0, place), end.map_or(count, place));
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    (start, &text[byte(start)..byte(end.max(start))])
}

/// `str.split`: at a separator or at runs of white space, with a maximum number of splits.
fn split(
    text: &str,
    separator: Option<&Value>,
    most: Option<usize>,
    last: bool,
) -> Result<Vec<String>, Error> {
    let owned = |pieces: Vec<&str>| pieces.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let Some(separator) = separator else {
        let (mut pieces, mut rest) = (Vec::new(), text);
        let trim = |rest| {
            if last {
                str::trim_end_matches(rest, python::is_space)
            } else {
                str::trim_start_matches(rest, python::is_space)
            }
        };
        loop {
            rest = trim(rest);
            if rest.is_empty() {
                break;
            }
            let at = if last { rest.rfind(python::is_space) } else { rest.find(python::is_space) };
            match at {
                Some(at) if most.is_none_or(|most| pieces.len() < most) => {
                    let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                    let (piece, left) = if last {
                        (&rest[after..], &rest[..at])
                    } else {
                        (&rest[..at], &rest[after..])
                    };
                    pieces.push(piece);
                    rest = left;
                }
                _ => {
                    let whole = if last {
                        rest.trim_start_matches(python::is_space)
                    } else {
                        rest.trim_end_matches(python::is_space)
                    };
                    // After the last split, trailing white space stays.
                    pieces.push(if at.is_some() && most == Some(pieces.len()) {
                        rest
                    } else {
                        whole
                    });
                    break;
                }
            }
        }
        if last {
            pieces.reverse();
        }
        return Ok(owned(pieces));
    };
    let Some(separator) = separator.as_str() else { return Err(wrong("must be str or None")) };
    if separator.is_empty() {
        return Err(wrong("empty separator"));
    }
    Ok(owned(match (most, last) {
        (None, _) => text.split(separator).collect(),
        (Some(most), false) => text.splitn(most + 1, separator).collect(),
        (Some(most), true) => {
            let mut pieces: Vec<&str> = text.rsplitn(most + 1, separator).collect();
            pieces.reverse();
            pieces
        }
    }))
}

/// `str.splitlines`, which recognizes more line ends than `\n`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut all, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        let two = rest[at..].starts_with("\r\n");
        let end = at + if two { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        all.push(if keep { &rest[..end] } else { &rest[..at] });
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        all.push(rest);
    }
    all
}

/// `str.title`: a letter after a non-letter is upper case, all others are lower case.
fn titled(text: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

/// An error with Python's message.
pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}
