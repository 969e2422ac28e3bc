//! Environment markers (PEP 508): the platforms and Python versions to which a requirement applies.
//!
//! The crate pep508_rs evaluates markers for a complete environment only, so it has no result for unknown values, and it
//! depends on the tables of internationalised domain names. Versions are compared by pep440_rs, as in pep508_rs.

use crate::{Minor, dotted};
use pep440_rs::VersionSpecifier;
use std::fmt;

/// A parsed marker with its original text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    text: String,
    condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Compare { variable: Variable, operator: String, value: String, value_first: bool },
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    SysPlatform,
    PlatformSystem,
    PlatformMachine,
    PythonVersion,
    OsName,
    Implementation,
    Extra,
    /// A variable whose value is unknown: the kernel's version, Python's patch version.
    Other,
}

/// PEP 508's variables. A user's own marker may use the first four.
const VARIABLES: [(&str, Variable); 12] = [
    ("sys_platform", Variable::SysPlatform),
    ("platform_system", Variable::PlatformSystem),
    ("platform_machine", Variable::PlatformMachine),
    ("python_version", Variable::PythonVersion),
    ("os_name", Variable::OsName),
    ("implementation_name", Variable::Implementation),
    ("platform_python_implementation", Variable::Implementation),
    ("extra", Variable::Extra),
    ("python_full_version", Variable::Other),
    ("implementation_version", Variable::Other),
    ("platform_release", Variable::Other),
    ("platform_version", Variable::Other),
];

/// The environment for which a marker is evaluated (PEP 508): platform and Python version.
#[derive(Debug, Clone, Copy)]
pub struct MarkerEnvironment<'a> {
    /// `linux` or `macos`.
    pub os: &'a str,
    /// `x86_64` or `aarch64`.
    pub arch: &'a str,
    /// The Python version; `None` if it is unknown.
    pub python: Option<Minor>,
}

impl Marker {
    /// Parses a user's marker on platform and Python version, with `and`, `or` and parentheses.
    ///
    /// # Errors
    /// A sentence that names the invalid part.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text, &VARIABLES[..4])
    }

    /// Parses a marker of a published package, with extras and every variable of PEP 508.
    ///
    /// # Errors
    /// A sentence that names the invalid part.
    pub fn published(text: &str) -> Result<Self, String> {
        Self::read(text, &VARIABLES)
    }

    fn read(text: &str, variables: &[(&str, Variable)]) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut rest = tokens.as_slice();
        let condition = parse_or(&mut rest, variables)?;
        match rest.first() {
            None => Ok(Self { text: text.trim().to_owned(), condition }),
            Some(word) => Err(format!("unexpected `{word}` in the marker `{text}`")),
        }
    }

    /// Whether it is true in an environment without requested extras; false if that is unknown.
    pub fn holds(&self, platform: MarkerEnvironment) -> bool {
        self.condition.evaluate(platform, &[]) == Some(true)
    }

    /// Its value in an environment with these requested extras (names normalised as in PEP 503); `None` if it depends on an
    /// unknown value.
    pub fn evaluate(&self, platform: MarkerEnvironment, extras: &[&str]) -> Option<bool> {
        self.condition.evaluate(platform, extras)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    fn evaluate(&self, platform: MarkerEnvironment, extras: &[&str]) -> Option<bool> {
        match self {
            Self::All(parts) => combine(parts, platform, extras, false),
            Self::Any(parts) => combine(parts, platform, extras, true),
            Self::Compare { variable: Variable::Other, .. } => None,
            Self::Compare { variable: Variable::Extra, operator, value, .. } => {
                let asked = || extras.iter().any(|extra| same_extra(extra, value));
                let among = || extras.iter().any(|extra| value.contains(extra));
                match operator.as_str() {
                    "==" | "===" => Some(asked()),
                    "!=" => Some(!asked()),
                    "in" => Some(among()),
                    "not in" => Some(!among()),
                    _ => None,
                }
            }
            Self::Compare { variable, operator, value, value_first } => {
                let own = variable.of(platform)?;
                Some(match value_first {
                    true => compare(value, operator, &own, *variable),
                    false => compare(&own, operator, value, *variable),
                })
            }
        }
    }
}

/// The value of an `or` (`deciding` is true) or an `and` (false): one part with the deciding value decides it, even if others
/// are unknown; otherwise every part must be known.
fn combine(
    parts: &[Condition],
    platform: MarkerEnvironment,
    extras: &[&str],
    deciding: bool,
) -> Option<bool> {
    let results = || parts.iter().map(|part| part.evaluate(platform, extras));
    if results().any(|part| part == Some(deciding)) {
        return Some(deciding);
    }
    results().all(|part| part.is_some()).then_some(!deciding)
}

/// Compares extras as normalised names (PEP 685).
fn same_extra(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '.'], "-");
    plain(one) == plain(other)
}

impl Variable {
    /// Its value on a platform; `None` if it is unknown.
    fn of(self, platform: MarkerEnvironment) -> Option<String> {
        let mac = platform.os == "macos";
        Some(match self {
            Self::SysPlatform if mac => "darwin".to_owned(),
            Self::PlatformSystem if mac => "Darwin".to_owned(),
            Self::PlatformSystem => "Linux".to_owned(),
            // macOS reports `arm64`.
            Self::PlatformMachine if mac && platform.arch == "aarch64" => "arm64".to_owned(),
            Self::SysPlatform => platform.os.to_owned(),
            Self::PlatformMachine => platform.arch.to_owned(),
            Self::PythonVersion => dotted(platform.python?),
            Self::OsName => "posix".to_owned(),
            // Assumes CPython, for which wheels with compiled files are built. `platform_python_implementation` is `CPython`;
            // both variables are compared in lower case.
            Self::Implementation => "cpython".to_owned(),
            Self::Extra | Self::Other => return None,
        })
    }
}

fn compare(left: &str, operator: &str, right: &str, variable: Variable) -> bool {
    if variable == Variable::PythonVersion
        && let Ok(specifier) = format!("{operator}{right}").parse::<VersionSpecifier>()
    {
        return left.parse().is_ok_and(|version| specifier.contains(&version));
    }
    let lower = |text: &str| match variable {
        Variable::Implementation => text.to_lowercase(),
        _ => text.to_owned(),
    };
    let (left, right) = (lower(left), lower(right));
    match operator {
        "==" | "===" => left == right,
        "!=" => left != right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        ">=" => left >= right,
        "in" => right.contains(&left),
        "not in" => !right.contains(&left),
        _ => false,
    }
}

/// Splits into tokens: names, operators, quoted strings (with their quotes) and parentheses.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '(' | ')' => 1,
            '\'' | '"' => match rest[1..].find(first) {
                Some(end) => end + 2,
                None => return Err(format!("a quote is not closed in the marker `{text}`")),
            },
            '=' | '!' | '<' | '>' | '~' => {
                rest.find(|c: char| !"=!<>~".contains(c)).unwrap_or(rest.len())
            }
            c if c.is_ascii_alphanumeric() => rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)))
                .unwrap_or(rest.len()),
            c => return Err(format!("unexpected `{c}` in the marker `{text}`")),
        };
        tokens.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    Ok(tokens)
}

fn parse_or(rest: &mut &[String], known: &[(&str, Variable)]) -> Result<Condition, String> {
    let mut parts = vec![parse_and(rest, known)?];
    while take(rest, "or") {
        parts.push(parse_and(rest, known)?);
    }
    Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::Any(parts) })
}

fn parse_and(rest: &mut &[String], known: &[(&str, Variable)]) -> Result<Condition, String> {
    let mut parts = vec![parse_comparison(rest, known)?];
    while take(rest, "and") {
        parts.push(parse_comparison(rest, known)?);
    }
    Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::All(parts) })
}

fn parse_comparison(rest: &mut &[String], known: &[(&str, Variable)]) -> Result<Condition, String> {
    if take(rest, "(") {
        let inner = parse_or(rest, known)?;
        return if take(rest, ")") {
            Ok(inner)
        } else {
            Err("a parenthesis is not closed".to_owned())
        };
    }
    let left = next(rest)?;
    let value_first = quoted(&left).is_some();
    let mut operator = next(rest)?;
    if operator == "not" {
        operator = format!("not {}", next(rest)?);
    }
    if !["==", "===", "~=", "!=", "<", "<=", ">", ">=", "in", "not in"].contains(&operator.as_str())
    {
        return Err(format!("`{operator}` is not a comparison"));
    }
    let right = next(rest)?;
    let (name, value) = if value_first { (right, left) } else { (left, right) };
    let Some((_, variable)) = known.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return Err(format!("a marker on `{name}` is not read, only on {}", known.join(", ")));
    };
    match quoted(&value) {
        Some(value) => {
            let value = value.to_owned();
            Ok(Condition::Compare { variable: *variable, operator, value, value_first })
        }
        None => Err(format!("`{value}` is not a quoted value")),
    }
}

/// The text between a token's quotes; `None` if it is not quoted.
fn quoted(word: &str) -> Option<&str> {
    word.starts_with(['\'', '"']).then(|| &word[1..word.len() - 1])
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

    const GH200: MarkerEnvironment =
        MarkerEnvironment { os: "linux", arch: "aarch64", python: Some((3, 12)) };
    const A10: MarkerEnvironment =
        MarkerEnvironment { os: "linux", arch: "x86_64", python: Some((3, 11)) };
    const MAC: MarkerEnvironment =
        MarkerEnvironment { os: "macos", arch: "aarch64", python: Some((3, 12)) };

    #[test]
    fn user_markers_hold_on_their_platforms() {
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
        check("python_version ~= '3.11'", [true, true, true]);
        check("python_version == '3.*'", [true, true, true]);
        check("'3.12' <= python_version", [true, false, true]);
        check("python_version in '3.10, 3.11'", [false, true, false]);
    }

    #[test]
    fn published_markers_are_evaluated_with_extras_and_unknown_values() {
        let check = |text: &str, extras: &[&str], expect: Option<bool>| {
            let marker = Marker::published(text).expect(text);
            assert_eq!(marker.evaluate(A10, extras), expect, "{text} with {extras:?}");
        };
        // Markers of torch 2.8.0's pins, of cuda-toolkit's extras and of other packages.
        let linux = "platform_system == \"Linux\" and platform_machine == \"x86_64\"";
        check(linux, &[], Some(true));
        check("extra == \"cublas\"", &[], Some(false));
        check("extra == \"cublas\"", &["cublas"], Some(true));
        check("extra == 'Cu_Blas'", &["cu-blas"], Some(true));
        check("python_version < '3.9' and extra == 'x'", &["x"], Some(false));
        check("os_name == 'nt' or platform_python_implementation == 'CPython'", &[], Some(true));
        check("platform_python_implementation != 'PyPy'", &[], Some(true));
        check("'linux' in sys_platform", &[], Some(true));
        check("'win' in sys_platform", &[], Some(false));
        // An unknown value matters only if no known value decides the result.
        let unknown = MarkerEnvironment { python: None, ..A10 };
        let evaluate = |text| Marker::published(text).expect(text).evaluate(unknown, &[]);
        assert_eq!(evaluate("python_version < '3.9'"), None);
        assert_eq!(
            evaluate("python_version < '3.9' and platform_machine == 'aarch64'"),
            Some(false)
        );
        check("python_full_version < '3.11.3'", &[], None);
        check("python_full_version < '3.11.3' and sys_platform == 'win32'", &[], Some(false));
        check("python_full_version < '3.11.3' or sys_platform == 'linux'", &[], Some(true));
    }

    #[test]
    fn published_markers_evaluate_as_in_packaging() {
        let platforms = [
            ("linux", "x86_64", (3, 12)),
            ("linux", "aarch64", (3, 10)),
            ("macos", "aarch64", (3, 13)),
        ];
        let lines = include_str!("marker/recorded.txt").lines();
        let mut evaluated = 0;
        for line in lines.filter(|line| !line.starts_with('#')) {
            let [expect, extra, text] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let marker = Marker::published(text).expect(text);
            let asked = [extra];
            let cases = [&asked[..0], &asked[..]].into_iter().flat_map(|extras| {
                platforms.map(|(os, arch, python)| {
                    (MarkerEnvironment { os, arch, python: Some(python) }, extras)
                })
            });
            for ((platform, extras), expect) in cases.zip(expect.chars()) {
                match marker.evaluate(platform, extras) {
                    Some(holds) => {
                        assert_eq!(holds, expect == 'T', "{text} on {platform:?} with {extras:?}")
                    }
                    None => assert!(text.contains("python_full_version"), "{text}"),
                }
                evaluated += 1;
            }
        }
        assert!(evaluated > 1000, "{evaluated}");
    }

    #[test]
    fn errors_name_the_invalid_part_of_a_marker() {
        for (text, words) in [
            ("extra == 'cuda'", "not read"),
            ("sys_platform == linux", "quoted"),
            ("sys_platform = 'linux'", "not a comparison"),
            ("sys_platform == 'linux", "quote is not closed"),
            ("(sys_platform == 'linux'", "parenthesis is not closed"),
            ("sys_platform == 'linux' 'x'", "unexpected"),
            ("sys_platform", "too early"),
            ("sys_platform == 'linux' & x", "`&`"),
        ] {
            let wrong = Marker::parse(text).expect_err(text);
            assert!(wrong.contains(words), "{text}: {wrong}");
        }
    }
}
