//! Environment markers (PEP 508): for which platforms a requirement is.

use knowledge::{Minor, Version, dotted};
use std::cmp::Ordering;
use std::fmt;

/// A condition on the platform, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    text: String,
    condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Compare { variable: Variable, operator: String, value: String },
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    SysPlatform,
    PlatformSystem,
    PlatformMachine,
    PythonVersion,
}

const VARIABLES: [(&str, Variable); 4] = [
    ("sys_platform", Variable::SysPlatform),
    ("platform_system", Variable::PlatformSystem),
    ("platform_machine", Variable::PlatformMachine),
    ("python_version", Variable::PythonVersion),
];

/// The platform a marker is held against.
#[derive(Debug, Clone, Copy)]
pub struct Platform<'a> {
    /// `linux` or `macos`.
    pub os: &'a str,
    /// `x86_64` or `aarch64`.
    pub arch: &'a str,
    /// Python.
    pub python: Minor,
}

impl Marker {
    /// Reads a marker of comparisons joined by `and`, `or` and parentheses.
    ///
    /// # Errors
    /// A sentence about what cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words = words(text)?;
        let mut rest = words.as_slice();
        let condition = any(&mut rest)?;
        match rest.first() {
            None => Ok(Self { text: text.trim().to_owned(), condition }),
            Some(word) => Err(format!("`{word}` is too much in the marker `{text}`")),
        }
    }

    /// Whether it holds on a platform.
    pub fn holds(&self, platform: Platform) -> bool {
        self.condition.holds(platform)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    fn holds(&self, platform: Platform) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(platform)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(platform)),
            Self::Compare { variable, operator, value } => {
                compare(&variable.of(platform), operator, value, *variable)
            }
        }
    }
}

impl Variable {
    fn of(self, platform: Platform) -> String {
        let mac = platform.os == "macos";
        match self {
            Self::SysPlatform if mac => "darwin".to_owned(),
            Self::PlatformSystem if mac => "Darwin".to_owned(),
            Self::PlatformSystem => "Linux".to_owned(),
            // Apple's own word for its processors.
            Self::PlatformMachine if mac && platform.arch == "aarch64" => "arm64".to_owned(),
            Self::SysPlatform => platform.os.to_owned(),
            Self::PlatformMachine => platform.arch.to_owned(),
            Self::PythonVersion => dotted(platform.python),
        }
    }
}

fn compare(left: &str, operator: &str, right: &str, variable: Variable) -> bool {
    let order = match variable {
        Variable::PythonVersion => match (Version::parse(left), Version::parse(right)) {
            (Some(left), Some(right)) => left.compare(&right),
            _ => return false,
        },
        _ => left.cmp(right),
    };
    match operator {
        "==" => order == Ordering::Equal,
        "!=" => order != Ordering::Equal,
        "<" => order == Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        ">=" => order != Ordering::Less,
        "in" => right.contains(left),
        _ => !right.contains(left),
    }
}

/// Names, operators, quoted strings (with their quotes) and parentheses.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '(' | ')' => 1,
            '\'' | '"' => match rest[1..].find(first) {
                Some(end) => end + 2,
                None => return Err(format!("a quote is open in the marker `{text}`")),
            },
            '=' | '!' | '<' | '>' | '~' => {
                rest.find(|c: char| !"=!<>~".contains(c)).unwrap_or(rest.len())
            }
            c if c.is_ascii_alphanumeric() => rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)))
                .unwrap_or(rest.len()),
            c => return Err(format!("`{c}` stands in the marker `{text}`")),
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

fn any(rest: &mut &[String]) -> Result<Condition, String> {
    let mut parts = vec![all(rest)?];
    while take(rest, "or") {
        parts.push(all(rest)?);
    }
    Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::Any(parts) })
}

fn all(rest: &mut &[String]) -> Result<Condition, String> {
    let mut parts = vec![one(rest)?];
    while take(rest, "and") {
        parts.push(one(rest)?);
    }
    Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::All(parts) })
}

fn one(rest: &mut &[String]) -> Result<Condition, String> {
    if take(rest, "(") {
        let inner = any(rest)?;
        return if take(rest, ")") { Ok(inner) } else { Err("a parenthesis is open".to_owned()) };
    }
    let name = next(rest)?;
    let known = VARIABLES.iter().find(|(known, _)| *known == name);
    let Some((_, variable)) = known else {
        let known: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
        return Err(format!("a marker on `{name}` is not read, only on {}", known.join(", ")));
    };
    let mut operator = next(rest)?;
    if operator == "not" {
        operator = format!("not {}", next(rest)?);
    }
    if !["==", "!=", "<", "<=", ">", ">=", "in", "not in"].contains(&operator.as_str()) {
        return Err(format!("`{operator}` is no comparison"));
    }
    let value = next(rest)?;
    match value.chars().next() {
        Some('\'' | '"') => {
            let value = value[1..value.len() - 1].to_owned();
            Ok(Condition::Compare { variable: *variable, operator, value })
        }
        _ => Err(format!("`{value}` stands where a quoted value is wanted")),
    }
}

fn next(rest: &mut &[String]) -> Result<String, String> {
    let (first, after) = rest.split_first().ok_or("the marker ends too early")?;
    *rest = after;
    Ok(first.clone())
}

fn take(rest: &mut &[String], word: &str) -> bool {
    match rest.split_first() {
        Some((first, after)) if first == word => {
            *rest = after;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GH200: Platform = Platform { os: "linux", arch: "aarch64", python: (3, 12) };
    const A10: Platform = Platform { os: "linux", arch: "x86_64", python: (3, 11) };
    const MAC: Platform = Platform { os: "macos", arch: "aarch64", python: (3, 12) };

    #[test]
    fn markers_of_published_wheels() {
        let check = |text: &str, expect: [bool; 3]| {
            let marker = Marker::parse(text).expect(text);
            assert_eq!([GH200, A10, MAC].map(|platform| marker.holds(platform)), expect, "{text}");
        };
        check(
            "platform_system == \"Linux\" and platform_machine == \"x86_64\"",
            [false, true, false],
        );
        check("platform_system == 'Linux' and python_version < '3.15'", [true, true, false]);
        check("sys_platform == 'darwin' or platform_machine == 'x86_64'", [false, true, true]);
        check("platform_machine in 'arm64 aarch64'", [true, false, true]);
        check("platform_machine not in 'arm64 aarch64'", [false, true, false]);
        check("python_version >= '3.9' and (sys_platform != 'linux')", [false, false, true]);
        check("python_version == '3.11'", [false, true, false]);
    }

    #[test]
    fn what_is_no_marker_says_what_is_wrong() {
        for (text, words) in [
            ("extra == 'cuda'", "not read"),
            ("sys_platform == linux", "quoted"),
            ("sys_platform = 'linux'", "no comparison"),
            ("sys_platform == 'linux", "open"),
            ("(sys_platform == 'linux'", "open"),
            ("sys_platform == 'linux' 'x'", "too much"),
            ("sys_platform", "too early"),
            ("sys_platform == 'linux' & x", "`&`"),
        ] {
            let wrong = Marker::parse(text).expect_err(text);
            assert!(wrong.contains(words), "{text}: {wrong}");
        }
    }
}
