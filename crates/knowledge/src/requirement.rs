//! Requirement specifiers (PEP 508) of METADATA files and users.

use crate::Version;
use crate::marker::{Marker, MarkerEnvironment};
use pep440_rs::VersionSpecifiers;

/// One `Requires-Dist` line: a requirement on another package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The line without surrounding white space.
    pub line: String,
    /// The package's name, not normalised.
    pub name: String,
    /// The requested extras: `cublas` and `cudart` of `cuda-toolkit[cublas,cudart]`.
    pub extras: Vec<String>,
    /// Operator and version pairs; all must hold.
    clauses: Vec<(String, String)>,
    /// The environment marker after the semicolon; empty without one.
    pub marker: String,
}

impl Requirement {
    /// Parses `triton==3.1.0; platform_system == "Linux"` or `torch (>=2.14.0)`; `None` if the line is not a requirement.
    pub fn parse(line: &str) -> Option<Self> {
        let (spec, marker) = line.split_once(';').unwrap_or((line, ""));
        let spec = spec.trim();
        let end = spec
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
            .unwrap_or(spec.len());
        let (name, rest) = spec.split_at(end);
        if name.is_empty() {
            return None;
        }
        let mut rest = rest.trim();
        let mut extras = Vec::new();
        if let Some(bracket) = rest.strip_prefix('[') {
            let (inside, after) = bracket.split_once(']')?;
            let names = inside.split(',').map(str::trim).filter(|name| !name.is_empty());
            extras.extend(names.map(str::to_owned));
            rest = after.trim();
        }
        // `name @ https://...` allows any version: the file has the one of that address.
        if rest.starts_with('@') {
            rest = "";
        }
        let rest = rest.trim_start_matches('(').trim_end_matches(')');
        let mut clauses = Vec::new();
        for clause in rest.split(',').map(str::trim).filter(|clause| !clause.is_empty()) {
            let end = clause.find(|c: char| !matches!(c, '=' | '<' | '>' | '~' | '!'))?;
            let (operator, version) = clause.split_at(end);
            if operator.is_empty() {
                return None;
            }
            clauses.push((operator.to_owned(), version.trim().to_owned()));
        }
        Some(Self {
            line: line.trim().to_owned(),
            name: name.to_owned(),
            extras,
            clauses,
            marker: marker.trim().to_owned(),
        })
    }

    /// Whether the line can apply on Linux without extras, on aarch64 if `arm`, otherwise on x86-64. A marker whose value is
    /// unknown, such as one on the Python version, counts as true.
    pub fn applies(&self, arm: bool) -> bool {
        let arch = if arm { "aarch64" } else { "x86_64" };
        self.holds(MarkerEnvironment { os: "linux", arch, python: None })
    }

    /// Whether the line can apply on a platform without extras. A marker whose value is unknown counts as true, an invalid one as false.
    pub fn holds(&self, platform: MarkerEnvironment) -> bool {
        let judged = |marker: Marker| marker.evaluate(platform, &[]) != Some(false);
        self.marker.is_empty() || Marker::published(&self.marker).is_ok_and(judged)
    }

    /// Whether the line constrains the version.
    pub fn is_pinned(&self) -> bool {
        !self.clauses.is_empty()
    }

    /// The version constraint, as written after a name: `==3.1.0`.
    pub fn constraint(&self) -> String {
        let clauses: Vec<String> =
            self.clauses.iter().map(|(operator, version)| format!("{operator}{version}")).collect();
        clauses.join(",")
    }

    /// Whether a release satisfies every clause by PEP 440; `None` if a clause or the version is invalid under PEP 440.
    pub fn allows(&self, version: &Version) -> Option<bool> {
        let specifiers: VersionSpecifiers = self.constraint().parse().ok()?;
        Some(specifiers.contains(&version.pep440()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_of_published_wheels_apply_and_allow_as_in_pep440() {
        let check = |line: &str, version: &str, arm: bool, expect: Option<bool>| {
            let requirement = Requirement::parse(line).expect(line);
            let version = Version::parse(version).expect(version);
            let got = requirement.applies(arm).then(|| requirement.allows(&version)).flatten();
            assert_eq!(got, expect, "{line} against {version:?}");
        };
        let triton =
            "triton==3.6.0 ; platform_system == \"Linux\" and platform_machine == \"x86_64\"";
        check(triton, "3.6.0", false, Some(true));
        check(triton, "3.5.0", false, Some(false));
        check(triton, "3.5.0", true, None);
        check("torch (==2.11.0)", "2.11.0+cu130", false, Some(true));
        check("torch (>=2.14.0)", "2.13.0", false, Some(false));
        check("torch==2.5.1", "2.5.0", false, Some(false));
        check("torch==2.5.*", "2.5.1", false, Some(true));
        check("torch==2.5.1+cu121", "2.5.1+cu124", false, Some(false));
        check("triton~=3.9.0; python_version < \"3.16\"", "3.9.4", true, Some(true));
        check("triton~=3.9.0", "3.10.0", true, Some(false));
        check("cuda-bindings<14,>=13.0.3", "13.3.1", false, Some(true));
        check("cuda-bindings<14,>=13.0.3", "14.0", false, Some(false));
        check("optree>=0.13.0; extra == \"optree\"", "0.1", false, None);
        check("numpy!=1.*", "1.26.4", false, Some(false));
        // A release candidate precedes its release, an epoch follows every release without one, `===` compares strings.
        check("torch>=2.14", "2.14.0rc1", false, Some(false));
        check("torch>=2.14", "2.14.0.post1", false, Some(true));
        check("torch<2.14", "2.14.0.dev20260101", false, Some(false));
        check("torch!=2.14.0", "2.14.0rc1", false, Some(true));
        check("x>=3", "1!2", false, Some(true));
        check("x===1.0", "1.0.0", false, Some(false));
        check("x>1.0", "1.0.post1", false, Some(false));
        check("torch>=2.6", "2.6.0a0+ecf3bae40a.nv25.01", false, Some(true));
        check("torch==2.14.0rc1", "2.14.0rc1", false, Some(true));
        check("x; 'x86_64' == platform_machine", "1", true, None);
        check("x; platform_machine in 'x86_64 AMD64'", "1", true, None);
        check("x; sys_platform == 'win32'", "1", false, None);
        check("x; extra == 'a' or sys_platform == 'linux'", "1", false, Some(true));
        check("x; extra in 'a'", "1", false, None);
    }

    #[test]
    fn parses_extras_and_addresses_and_rejects_junk() {
        let toolkit = Requirement::parse("cuda-toolkit[cublas,cudart]==13.0.2").expect("parses");
        assert_eq!(
            (toolkit.name.as_str(), toolkit.constraint().as_str()),
            ("cuda-toolkit", "==13.0.2")
        );
        assert_eq!(toolkit.extras, ["cublas", "cudart"]);
        let address = Requirement::parse("own @ https://example.org/own.whl").expect("parses");
        assert!(!address.is_pinned());
        assert!(!Requirement::parse("filelock").expect("parses").is_pinned());
        for junk in ["", "   ", "==1.0", "name[open", "name 1.0"] {
            assert_eq!(Requirement::parse(junk), None, "{junk:?}");
        }
    }
}
