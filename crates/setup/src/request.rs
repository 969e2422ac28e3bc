//! The request for a plan.

use crate::index::PublishedReleases;
use crate::profile_yaml;
use facts::{Dist, PlanRequirement};
use knowledge::kernels::of_layer;
use knowledge::marker::Marker;
use knowledge::profiles::Profile;
use knowledge::{Minor, Requirement};

/// The requirements and permissions of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanRequest {
    /// The packages to install.
    pub wants: Vec<RequestedPackage>,
    /// The requested Python, if any.
    pub python: Option<Minor>,
    /// Installed releases of Python: if one of them fits, no other is used. Empty if unknown.
    pub pythons: Vec<Minor>,
    /// The requested CUDA release of torch's build, if any.
    pub cuda: Option<Minor>,
    /// Whether wheels built by one person may be used.
    pub community: bool,
    /// Releases read from an index, in addition to the tables.
    pub published: PublishedReleases,
}

/// A requested package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedPackage {
    /// The package, its versions, the origin of the request, and whether it may be built from source.
    pub want: PlanRequirement,
    /// Its platforms; `None` for all.
    pub marker: Option<Marker>,
    /// Whether it is left out, with a warning, if nothing fits.
    pub optional: bool,
}

/// Why a request is invalid.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// An invalid requirement.
    #[error("`{line}` is not a requirement: {reason}")]
    Requirement {
        /// The text.
        line: String,
        /// The problem.
        reason: String,
    },
}

impl RequestedPackage {
    /// Parses a requirement in the syntax of requirements files: `flash-attn>=2.8; platform_machine == 'x86_64'`.
    ///
    /// # Errors
    /// [`RequestError::Requirement`] for other texts.
    pub fn parse(line: &str, because: &str) -> Result<Self, RequestError> {
        let wrong = |reason: String| RequestError::Requirement { line: line.to_owned(), reason };
        let read = Requirement::parse(line).ok_or_else(|| {
            wrong("expected a name and versions, like flash-attn>=2.8".to_owned())
        })?;
        // Neither names nor versions have this character.
        if line.split(';').next().is_some_and(|spec| spec.contains('@')) {
            return Err(wrong(
                "a plan takes releases of package indexes, not files at an address".to_owned(),
            ));
        }
        let specifiers = read.constraint();
        let _: pep440_rs::VersionSpecifiers =
            specifiers.parse().map_err(|reason: pep440_rs::VersionSpecifiersParseError| {
                wrong(reason.to_string().lines().next().unwrap_or_default().to_owned())
            })?;
        let marker = match read.marker.as_str() {
            "" => None,
            text => Some(Marker::parse(text).map_err(wrong)?),
        };
        let package = Dist::normalise(&read.name);
        let because = because.to_owned();
        let want = PlanRequirement { package, specifiers, because, source_build: false };
        Ok(Self { want, marker, optional: false })
    }
}

impl PlanRequest {
    /// The requirements of a stored profile.
    ///
    /// # Errors
    /// [`RequestError`] for an invalid requirement.
    pub fn of_profile(profile: &Profile) -> Result<Self, RequestError> {
        let because = format!("profile {}", profile.name);
        let lines = profile.wants.iter().map(|line| (line, false));
        let lines = lines.chain(profile.optional.iter().map(|line| (line, true)));
        let read = |(line, optional): (&String, bool)| {
            RequestedPackage::parse(line, &because)
                .map(|wanted| RequestedPackage { optional, ..wanted })
        };
        let mut request = Self {
            wants: lines.map(read).collect::<Result<_, _>>()?,
            python: profile.python,
            cuda: profile.cuda,
            ..Self::default()
        };
        request.allow_builds(&profile.build);
        Ok(request)
    }

    /// The versions of a team's stack in a file: each is pinned, and so is the CUDA release.
    ///
    /// # Errors
    /// [`RequestError`] for an invalid version.
    pub fn of_versions(
        profile: &profile_yaml::ProfileFile,
        file: &str,
    ) -> Result<Self, RequestError> {
        let requirements = profile.requirements();
        let wants = requirements.iter().map(|line| RequestedPackage::parse(line, file));
        let wants = wants.collect::<Result<_, _>>()?;
        let cuda = profile.cuda_version.as_deref().map(|version| {
            knowledge::minor_of(version).ok_or_else(|| RequestError::Requirement {
                line: format!("cuda_version: {version}"),
                reason: "expected two numbers, like 12.8".to_owned(),
            })
        });
        Ok(Self { wants, cuda: cuda.transpose()?, ..Self::default() })
    }

    /// The packages that a model's layers need to run at full speed, by the kinds that diagnose reads from a
    /// config.json.
    pub fn of_layers(kinds: &[&str]) -> Self {
        let mut request = Self::default();
        let mut want = |package: &str, because: String, optional: bool| {
            let there = request.wants.iter_mut().find(|wanted| wanted.want.package == package);
            match there {
                // Optional only if every layer can run without it.
                Some(wanted) => wanted.optional &= optional,
                None => {
                    let (package, specifiers) = (package.to_owned(), String::new());
                    let want =
                        PlanRequirement { package, specifiers, because, source_build: false };
                    request.wants.push(RequestedPackage { want, marker: None, optional });
                }
            }
        };
        for package in ["torch", "transformers"] {
            want(package, "config.json: a model of transformers".to_owned(), false);
        }
        for kind in kinds {
            for kernel in of_layer(kind) {
                want(&kernel.package, format!("config.json: {kind} layers"), kernel.optional);
            }
        }
        request
    }

    /// Allows source builds of packages if no wheel fits; `all` allows every one.
    pub fn allow_builds(&mut self, packages: &[String]) {
        for wanted in &mut self.wants {
            let named =
                |name: &String| name == "all" || Dist::normalise(name) == wanted.want.package;
            wanted.want.source_build |= packages.iter().any(named);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_with_an_address_is_refused() {
        for line in [
            "torch @ https://example.org/torch-2.9.0-cp312-cp312-linux_x86_64.whl",
            "torch@file:///wheels/torch.whl",
            "torch[extra] @ https://example.org/torch.whl ; sys_platform == 'linux'",
            "git+https://example.org/torch.git",
        ] {
            let error = RequestedPackage::parse(line, "requirement").expect_err(line).to_string();
            assert!(error.contains("is not a requirement"), "{error}");
        }
        let marker = "torch>=2; platform_node != 'a@b'";
        assert!(RequestedPackage::parse("torch>=2", "requirement").is_ok());
        let parsed = RequestedPackage::parse(marker, "requirement");
        assert!(!parsed.is_err_and(|error| error.to_string().contains("address")));
    }
}
