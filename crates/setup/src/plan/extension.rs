//! Selects the releases of a package that fit a torch and a Python, with their sources.

use super::Reason;
use super::catalogue::{Release, Requires, Wheel};
use super::problem::{IgnoredLimits, Item, Limit, Problem};
use super::torch::{Torch, pypi};
use facts::CompactSort;
use facts::{BuildRecipe, PackageOrigin, PlanIndex, PlannedFile};
use knowledge::indexes::{Trust, WheelVariables};
use knowledge::packages::{self, Needs};
use knowledge::recipes::{Recipe, recipe};
use knowledge::torch_builds::runs_on;
use knowledge::wheels::Wheels;
use knowledge::{Minor, Sm, abi, dotted, minor_of};

/// One release from one source.
#[derive(Debug, Clone)]
pub(super) struct SelectedRelease<'p> {
    pub(super) item: usize,
    /// `None` for an unknown package.
    pub(super) release: Option<&'p Release>,
    /// With the local label, if the source has one; empty if uv chooses.
    pub(super) version: String,
    pub(super) index: PlanIndex,
    pub(super) trust: Trust,
    pub(super) origin: PackageOrigin,
    pub(super) files: Vec<PlannedFile>,
    pub(super) source: String,
}

impl SelectedRelease<'_> {
    pub(super) fn is_build(&self) -> bool {
        matches!(self.origin, PackageOrigin::Build(_))
    }
}

/// The context of selecting an item.
#[derive(Clone, Copy)]
pub(super) struct SelectionContext<'a, 'p> {
    pub(super) problem: &'p Problem<'p>,
    pub(super) torch: Option<&'a Torch<'p>>,
    pub(super) python: Minor,
    pub(super) dropped: &'a IgnoredLimits,
    /// The triton of torch's series, unless one was requested by name.
    pub(super) companion: Option<&'a Requires>,
}

impl<'p> SelectionContext<'_, 'p> {
    pub(super) fn holds(&self, limit: Limit) -> bool {
        !self.dropped.contains(&limit)
    }

    /// Every fitting release of an item, best first: newest first, and for one release the wheel before the build.
    pub(super) fn options(&self, number: usize) -> Result<Vec<SelectedRelease<'p>>, Reason> {
        let item = &self.problem.items[number];
        if item.releases.is_empty() {
            return Ok(vec![self.unknown(number)]);
        }
        self.starts_here(number, item)?;
        let python = format!("{}.{}", self.python.0, self.python.1);
        let python: Option<pep440_rs::Version> = python.parse().ok();
        let all = self.holds(Limit::Versions(number));
        let meant: Vec<&Release> = item
            .releases
            .iter()
            .filter(|release| !all || item.specifiers.contains(&release.version))
            .collect();
        if meant.is_empty() {
            let known: Vec<&str> = item.releases.iter().map(|row| row.text.as_str()).collect();
            let text = format!("no {} is known, only {}", item.requirement(), known.join(", "));
            return Err(Reason::new(text, source_of(item)));
        }
        let mut picks = Vec::new();
        for release in meant {
            if !python.as_ref().is_some_and(|python| release.python.contains(python)) {
                continue;
            }
            picks.extend(self.wheel(number, item, release));
            picks.extend(self.build(number, item, release));
        }
        if !picks.is_empty() {
            return Ok(picks);
        }
        // The newest release represents the package: its reason is the one to report.
        let unfit =
            item.releases.iter().filter(|release| item.specifiers.contains(&release.version));
        let unfit =
            unfit.flat_map(|release| self.fitting(release).map(move |wheel| (release, wheel)));
        let reason = unfit.filter_map(|(release, wheel)| self.unfit(number, release, wheel)).next();
        Err(reason.unwrap_or_else(|| self.no_wheel(number)))
    }

    /// uv resolves unknown packages; an exactly requested version is known.
    fn unknown(&self, number: usize) -> SelectedRelease<'p> {
        let item = &self.problem.items[number];
        let exact = item.want.specifiers.strip_prefix("==");
        let exact = exact.filter(|version| !version.contains([',', '*', '=']));
        SelectedRelease {
            item: number,
            release: None,
            version: exact.unwrap_or_default().to_owned(),
            index: pypi(),
            trust: Trust::Registry,
            origin: PackageOrigin::Wheel,
            files: Vec::new(),
            source: item.want.because.clone(),
        }
    }

    fn starts_here(&self, number: usize, item: &Item) -> Result<(), Reason> {
        let Some(package) = item.package.filter(|_| self.holds(Limit::Floor(number))) else {
            return Ok(());
        };
        let source = package.source.to_string();
        if package.needs == Some(Needs::Cuda) && !self.problem.has_gpu() {
            return Err(Reason::new(package.needs_gpu(), source));
        }
        let oldest = self.problem.target.gpus.iter().min();
        match (package.oldest_gpu, oldest) {
            (Some(floor), Some(gpu)) if *gpu < floor => {
                let text = format!(
                    "{} needs compute capability {} or later, this GPU has {}",
                    item.name(),
                    dotted(floor),
                    dotted(*gpu)
                );
                Err(Reason::new(text, source))
            }
            _ => Ok(()),
        }
    }

    fn wheel(
        &self,
        number: usize,
        item: &'p Item,
        release: &'p Release,
    ) -> Option<SelectedRelease<'p>> {
        let elsewhere = || {
            let mut found: Vec<SelectedRelease> = release
                .wheels
                .iter()
                .filter_map(|row| self.elsewhere(number, release, row))
                .collect();
            // The project's own build first, then a company's, then one person's.
            found.compact_sort_by_key(|pick| pick.trust);
            found.into_iter().next()
        };
        let has_libraries = self.has_libraries(item, release);
        self.of_torch(number, item, release)
            .or_else(|| self.on_pypi(number, release))
            .filter(|_| has_libraries)
            .or_else(elsewhere)
    }

    /// torch, and the packages published with it.
    fn of_torch(
        &self,
        number: usize,
        item: &Item,
        release: &'p Release,
    ) -> Option<SelectedRelease<'p>> {
        let torch = self.torch?;
        let own = self.problem.torch == Some(number);
        let beside = || matches!(item.name(), "torchvision" | "torchaudio");
        // triton's wheels for Arm are on PyPI since 3.5.
        let is_triton = || {
            item.name() == "triton"
                && self.problem.has_gpu()
                && self.fitting(release).next().is_none()
        };
        if !(own || beside() || is_triton()) {
            return None;
        }
        let index = torch.index(self.problem);
        if index.name == "pypi" {
            return None;
        }
        Some(SelectedRelease {
            item: number,
            release: Some(release),
            version: if own { torch.version(self.problem) } else { release.text.clone() },
            index,
            trust: Trust::Project,
            origin: PackageOrigin::Wheel,
            files: Vec::new(),
            source: torch
                .build
                .map_or(torch.series.source.to_string(), |row| row.source.to_string()),
        })
    }

    /// The fitting wheels of a release on PyPI. If files differ only in their build tag, the highest counts.
    fn fitting(&self, release: &'p Release) -> impl Iterator<Item = &'p Wheel> {
        let tags = self.problem.tags(self.python, self.dropped);
        let mut files: Vec<&Wheel> =
            release.files.iter().filter(|wheel| wheel.name.fits(&tags)).collect();
        let build = |wheel: &&Wheel| {
            let digits = wheel.name.build.as_deref().unwrap_or_default();
            digits.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0)
        };
        files.compact_sort_by_key(|wheel| std::cmp::Reverse(build(wheel)));
        files.into_iter()
    }

    fn on_pypi(&self, number: usize, release: &'p Release) -> Option<SelectedRelease<'p>> {
        let wheel = self.fitting(release).next()?;
        if self.unfit(number, release, wheel).is_some() {
            return None;
        }
        Some(SelectedRelease {
            item: number,
            release: Some(release),
            version: release.text.clone(),
            index: pypi(),
            trust: Trust::Registry,
            origin: PackageOrigin::Wheel,
            files: vec![wheel.file.clone()],
            source: release.cited.clone()?,
        })
    }

    /// A package with a library for each CUDA release does not work with another one.
    fn has_libraries(&self, item: &Item, release: &Release) -> bool {
        let cuda = self.torch.and_then(Torch::cuda);
        match (packages::libraries(item.name(), &release.text), cuda) {
            (Some(row), Some(cuda)) => row.cuda.contains(&cuda),
            _ => true,
        }
    }

    fn elsewhere(
        &self,
        number: usize,
        release: &'p Release,
        row: &Wheels,
    ) -> Option<SelectedRelease<'p>> {
        let (torch, arch) = (self.torch?, self.problem.arch?);
        let cuda = torch.cuda()?;
        let index = row.index();
        if index.trust == Trust::Community && !self.problem.community && self.holds(Limit::Trust) {
            return None;
        }
        let compiled_for = row.torch_of(torch.series.torch)?;
        let new_abi = abi::abi(torch.series.torch, cuda, arch)?.new;
        let glibc = self.problem.tags(self.python, self.dropped).glibc;
        let asks = index.glibc.as_deref().and_then(minor_of);
        let fits = row.cuda.iter().any(|allowed| allowed.allows(cuda))
            && row.python.contains(&self.python)
            && row.arch.contains(&arch)
            && row.abi.iter().any(|label| label == abi::label(new_abi))
            && glibc.is_none_or(|have| asks.is_none_or(|asks| have >= asks))
            && (!self.holds(Limit::Gpu)
                || self.problem.target.gpus.iter().all(|gpu| self.runs(&row.sm, *gpu)));
        if !fits {
            return None;
        }
        let tag = row.tag();
        let named = WheelVariables {
            torch: compiled_for,
            series: torch.series.torch,
            cuda,
            new_abi,
            arch,
            tag: &tag,
        };
        let (version, name) = row.file(&named, self.python);
        let folder = index.files.as_deref().map(|folder| named.fill(folder));
        // Some servers decode a `+` in a URL as a space.
        let url = folder.map(|folder| format!("{folder}{}", name.replace('+', "%2B")));
        Some(SelectedRelease {
            item: number,
            release: Some(release),
            version,
            index: PlanIndex {
                name: format!(
                    "{}-{}",
                    index.name,
                    named.fill(if index.flat { "{tag}" } else { "cu{digits}" })
                ),
                url: named.fill(&index.url),
                explicit: true,
                flat: index.flat,
            },
            trust: index.trust,
            origin: PackageOrigin::Wheel,
            files: vec![PlannedFile { name, url, sha256: None, bytes: None }],
            source: row.source.to_string(),
        })
    }

    fn runs(&self, sm: &[Sm], gpu: Sm) -> bool {
        if self.problem.target.tegra { sm.contains(&gpu) } else { runs_on(sm, gpu) }
    }

    fn build(
        &self,
        number: usize,
        item: &Item,
        release: &'p Release,
    ) -> Option<SelectedRelease<'p>> {
        let recipe = recipe(item.name());
        if self.problem.compiles(number) && !self.problem.may_build(number, self.dropped) {
            return None;
        }
        let in_repository = recipe.is_some_and(|row| row.only.contains(&release.text));
        if release.source.is_none() && !in_repository {
            return None;
        }
        Some(SelectedRelease {
            item: number,
            release: Some(release),
            version: release.text.clone(),
            index: pypi(),
            trust: Trust::Registry,
            origin: PackageOrigin::Build(self.recipe(recipe, item, release)),
            files: release.source.iter().cloned().collect(),
            source: recipe.map_or_else(|| source_of(item), |row| row.source.to_string()),
        })
    }

    /// The build of a release for the target's GPUs. Without a recipe, a build with default settings.
    fn recipe(&self, recipe: Option<&Recipe>, item: &Item, release: &Release) -> BuildRecipe {
        let Some(recipe) = recipe else {
            return BuildRecipe {
                requirement: format!("{}=={}", item.name(), release.text),
                env: Vec::new(),
                build_requires: Vec::new(),
                system_requires: Vec::new(),
                minutes: (0, 0),
                job_bytes: 0,
                source: String::new(),
                requires: Vec::new(),
            };
        };
        let mut env: Vec<(String, String)> = recipe.env.clone().into_iter().collect();
        env.extend(recipe.arch.as_ref().map(|name| (name.clone(), self.architectures(recipe))));
        BuildRecipe {
            requirement: recipe.requirement.replace("{version}", &release.text),
            env,
            build_requires: recipe.build_requires.clone(),
            system_requires: recipe.system_requires.clone(),
            minutes: recipe.minutes,
            job_bytes: recipe.job_gb.saturating_mul(1_000_000_000),
            source: recipe.source.to_string(),
            requires: match &release.requires[..] {
                [] => recipe.requires.clone(),
                known => known.iter().map(|row| row.line.clone()).collect(),
            },
        }
    }

    /// The target's GPUs in the format of the recipe's variable: compiling only for these takes a fraction of the time.
    fn architectures(&self, recipe: &Recipe) -> String {
        let name =
            |gpu: &Sm| match recipe.of.iter().rfind(|known| known.0 == gpu.0 && *known <= gpu) {
                Some(known) => format!("{}{}", known.0, known.1),
                None => dotted(*gpu),
            };
        let mut names: Vec<String> = self.problem.target.gpus.iter().map(name).collect();
        names.compact_sort();
        names.dedup();
        names.join(";")
    }

    /// Why one release of an item does not fit a stack whose other packages are chosen.
    pub(super) fn why_not(
        &self,
        number: usize,
        release: &'p Release,
        picks: &[SelectedRelease<'p>],
    ) -> Reason {
        let item = &self.problem.items[number];
        let wheel = self.wheel(number, item, release);
        let Some(pick) = wheel.or_else(|| self.build(number, item, release)) else {
            let unfit =
                self.fitting(release).next().and_then(|wheel| self.unfit(number, release, wheel));
            return match (unfit, release.files.is_empty(), release.wheels.is_empty()) {
                (Some(reason), ..) => reason,
                (None, true, true) => Reason::new("only its source is published", source_of(item)),
                _ => self.no_wheel(number),
            };
        };
        let mut picks: Vec<SelectedRelease> =
            picks.iter().filter(|p| p.item != number).cloned().collect();
        picks.push(pick);
        match super::pins::consistent(self, &picks) {
            Err(clash) => clash.reason,
            Ok(()) => Reason::new("another release has a wheel", source_of(item)),
        }
    }

    pub(super) fn no_wheel(&self, number: usize) -> Reason {
        let item = &self.problem.items[number];
        let there = published(item, self.problem);
        let cuda = self.torch.and_then(Torch::cuda).map(|cuda| format!(", CUDA {}", dotted(cuda)));
        let text = format!(
            "no wheel of {} for it{}, Python {} and {}: {there}",
            item.requirement(),
            cuda.unwrap_or_default(),
            dotted(self.python),
            self.problem.target.arch,
        );
        Reason::new(text, source_of(item))
    }
}

/// The published wheels of a package, as text.
pub(super) fn published(item: &Item, problem: &Problem) -> String {
    let range = |community: bool| {
        let rows = item.releases.iter().flat_map(|release| &release.wheels);
        let rows = rows.filter(|row| problem.arch.is_some_and(|arch| row.arch.contains(&arch)));
        let rows = rows.filter(|row| (row.index().trust == Trust::Community) == community);
        let mut series: Vec<Minor> =
            rows.flat_map(|row| row.torch.iter().filter_map(|torch| minor_of(torch))).collect();
        series.compact_sort();
        Some(format!("torch {} to {}", dotted(*series.first()?), dotted(*series.last()?)))
    };
    match (range(false), range(true)) {
        (Some(those), None) => format!("wheels exist for {those}"),
        (Some(those), Some(more)) => {
            format!("wheels exist for {those}, and from one person for {more}")
        }
        (None, Some(more)) => format!("wheels exist only from one person, for {more}"),
        (None, None) if item.releases.iter().all(|release| release.files.is_empty()) => {
            "it is published as source".to_owned()
        }
        (None, None) => "those on PyPI are for other platforms".to_owned(),
    }
}

/// The source of the newest wheels of a package, or else of PyPI's data.
pub(super) fn source_of(item: &Item) -> String {
    let row = item.releases.iter().find_map(|release| release.wheels.last());
    let row = row.map(|row| row.source.to_string());
    row.or_else(|| item.releases.iter().find_map(|release| release.cited.clone()))
        .unwrap_or_default()
}
