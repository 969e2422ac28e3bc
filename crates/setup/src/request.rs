//! What a plan is asked for.

use crate::index::Published;
use crate::profile_yaml;
use facts::{Dist, Want};
use knowledge::kernels::of_layer;
use knowledge::marker::Marker;
use knowledge::profiles::Profile;
use knowledge::{Minor, Requirement};

/// What is wanted of a machine, and what is allowed for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// What to install.
    pub wants: Vec<Wanted>,
    /// Python, where one was asked for.
    pub python: Option<Minor>,
    /// Releases of Python that the machine has: where something fits one of them, no other is taken. Empty where they are
    /// not known.
    pub pythons: Vec<Minor>,
    /// The CUDA release of torch's build, where one was asked for.
    pub cuda: Option<Minor>,
    /// Whether wheels that one person built may be taken.
    pub community: bool,
    /// What an index was read to have, in addition to the tables.
    pub published: Published,
}

/// One thing that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The package, its versions, who asked, and whether it may be built from source.
    pub want: Want,
    /// For which platforms; `None` for all.
    pub marker: Option<Marker>,
    /// Whether it is left out, with a warning, where nothing fits.
    pub optional: bool,
}

/// Why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A requirement that is none.
    #[error("`{line}` is no requirement: {reason}")]
    Requirement {
        /// What was written.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Wanted {
    /// Reads a requirement as a requirements file has it: `flash-attn>=2.8; platform_machine == 'x86_64'`.
    ///
    /// # Errors
    /// [`RequestError::Requirement`] for anything else.
    pub fn parse(line: &str, because: &str) -> Result<Self, RequestError> {
        let wrong = |reason: String| RequestError::Requirement { line: line.to_owned(), reason };
        let read = Requirement::parse(line)
            .ok_or_else(|| wrong("wanted a name and versions, like flash-attn>=2.8".to_owned()))?;
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
        let want = Want { package, specifiers, because, source_build: false };
        Ok(Self { want, marker, optional: false })
    }
}

impl Request {
    /// What a stored profile asks for.
    ///
    /// # Errors
    /// [`RequestError`] for a requirement that cannot be read.
    pub fn of_profile(profile: &Profile) -> Result<Self, RequestError> {
        let because = format!("profile {}", profile.name);
        let lines = profile.wants.iter().map(|line| (line, false));
        let lines = lines.chain(profile.optional.iter().map(|line| (line, true)));
        let read = |(line, optional): (&String, bool)| {
            Wanted::parse(line, &because).map(|wanted| Wanted { optional, ..wanted })
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

    /// The versions that a team keeps of its stack in a file: each is pinned, and so is the CUDA release.
    ///
    /// # Errors
    /// [`RequestError`] for a version that is none.
    pub fn of_versions(profile: &profile_yaml::Profile, file: &str) -> Result<Self, RequestError> {
        let requirements = profile.requirements();
        let wants = requirements.iter().map(|line| Wanted::parse(line, file));
        let wants = wants.collect::<Result<_, _>>()?;
        let cuda = profile.cuda_version.as_deref().map(|version| {
            knowledge::minor_of(version).ok_or_else(|| RequestError::Requirement {
                line: format!("cuda_version: {version}"),
                reason: "wanted two numbers, like 12.8".to_owned(),
            })
        });
        Ok(Self { wants, cuda: cuda.transpose()?, ..Self::default() })
    }

    /// What the layers of a model need to run at full speed: the kinds that diagnose reads from a config.json.
    pub fn of_layers(kinds: &[&str]) -> Self {
        let mut request = Self::default();
        let mut want = |package: &str, because: String, optional: bool| {
            let there = request.wants.iter_mut().find(|wanted| wanted.want.package == package);
            match there {
                // What one layer can do without, another may need.
                Some(wanted) => wanted.optional &= optional,
                None => {
                    let (package, specifiers) = (package.to_owned(), String::new());
                    let want = Want { package, specifiers, because, source_build: false };
                    request.wants.push(Wanted { want, marker: None, optional });
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

    /// Lets packages be built from source where no wheel fits; `all` stands for every one.
    pub fn allow_builds(&mut self, packages: &[String]) {
        for wanted in &mut self.wants {
            let named =
                |name: &String| name == "all" || Dist::normalise(name) == wanted.want.package;
            wanted.want.source_build |= packages.iter().any(named);
        }
    }
}
