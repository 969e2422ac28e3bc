//! Plans built by hand, each for one format's features.

use facts::{
    BuildRecipe, Fact, InstallPlan, PackageOrigin, PlanIndex, PlanRequirement, PlanTarget,
    PlannedFile, PlannedPackage, RejectedCandidate, SCHEMA,
};

pub(crate) const PYPI: &str = "https://pypi.org/simple";
pub(crate) const CU128: &str = "https://download.pytorch.org/whl/cu128";

/// A machine: its name, system, architecture and GPUs.
pub(crate) fn target(name: &str, os: &str, arch: &str, gpus: &[(u32, u32)]) -> PlanTarget {
    PlanTarget {
        name: name.to_owned(),
        os: os.to_owned(),
        arch: arch.to_owned(),
        glibc: (os == "linux").then(|| "2.35".to_owned()),
        gpus: gpus.to_vec(),
        driver: None,
        cuda_limit: None,
        tegra: false,
        memory_bytes: None,
        source: "a test".to_owned(),
    }
}

pub(crate) fn index(name: &str, url: &str) -> PlanIndex {
    PlanIndex { name: name.to_owned(), url: url.to_owned(), explicit: name != "pypi", flat: false }
}

/// A wheel, given as `name==version`, from this index.
pub(crate) fn wheel(pin: &str, index: &str) -> PlannedPackage {
    let (name, version) = pin.split_once("==").unwrap();
    PlannedPackage {
        name: name.to_owned(),
        version: version.to_owned(),
        index: index.to_owned(),
        because: "wanted".to_owned(),
        origin: PackageOrigin::Wheel,
        marker: None,
        files: Vec::new(),
        source: "a test".to_owned(),
    }
}

/// A file with a hash of repetitions of this digit.
pub(crate) fn file(name: &str, digit: char) -> PlannedFile {
    PlannedFile {
        name: name.to_owned(),
        url: Some(format!("https://files.example/{}", name.replace('+', "%2B"))),
        sha256: Some(String::from_iter([digit; 64])),
        bytes: Some(1000),
    }
}

pub(crate) fn plan(
    target: PlanTarget,
    indexes: &[PlanIndex],
    packages: &[PlannedPackage],
) -> InstallPlan {
    InstallPlan {
        schema: SCHEMA,
        target,
        wants: Vec::new(),
        python: "3.12".to_owned(),
        cuda: None,
        indexes: indexes.to_vec(),
        packages: packages.to_vec(),
        warnings: Vec::new(),
        rejected: Vec::new(),
        locked: false,
    }
}

/// Every field in use: a GH200 with torch from its own index and flash-attn compiled.
pub(crate) fn full() -> InstallPlan {
    let mut target = target("gh200", "linux", "aarch64", &[(9, 0)]);
    target.driver = Some("580.95.05".to_owned());
    target.cuda_limit = Some((13, 0));
    target.memory_bytes = Some(480 << 30);
    let recipe = BuildRecipe {
        requirement: "flash-attn==2.8.3".to_owned(),
        env: vec![("FLASH_ATTENTION_FORCE_BUILD".to_owned(), "TRUE".to_owned())],
        build_requires: vec!["torch".to_owned(), "ninja".to_owned()],
        requires: vec!["torch".to_owned(), "einops".to_owned()],
        system_requires: vec!["nvcc".to_owned(), "c++".to_owned()],
        minutes: (5, 10),
        job_bytes: 5_000_000_000,
        source: "a test".to_owned(),
    };
    let flash_attn = PlannedPackage {
        origin: PackageOrigin::Build(recipe),
        ..wheel("flash-attn==2.8.3", "pypi")
    };
    let mut numpy = wheel("numpy==2.3.4", "pypi");
    numpy.files = vec![file("numpy-2.3.4-cp312-cp312-manylinux_2_28_aarch64.whl", 'a')];
    let triton = PlannedPackage {
        marker: Some("sys_platform == 'linux'".to_owned()),
        ..wheel("triton==3.6.0", "pypi")
    };
    InstallPlan {
        wants: vec![PlanRequirement {
            package: "flash-attn".to_owned(),
            specifiers: "==2.8.3".to_owned(),
            because: "requirement".to_owned(),
            source_build: true,
        }],
        cuda: Some("12.8".to_owned()),
        warnings: vec![Fact { value: "a doubtful pair".to_owned(), source: "a test".to_owned() }],
        rejected: vec![RejectedCandidate {
            candidate: "torch 2.14 cu130".to_owned(),
            reason: "no wheel of flash-attn\nfits".to_owned(),
            source: "a test".to_owned(),
        }],
        ..plan(
            target,
            &[index("pypi", PYPI), index("pytorch-cu128", CU128)],
            &[wheel("torch==2.10.0+cu128", "pytorch-cu128"), triton, numpy, flash_attn],
        )
    }
}
