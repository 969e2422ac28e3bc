//! Plans with an index: rows P02, P04 and P05, with answers in PyPI's format: recorded, shortened or invented.

use super::{machine, packages, request};
use crate::index::{IndexError, PublishedRelease, ReleaseSource};
use crate::{plan_with, target};
use facts::{InstallPlan, PlanRefusal, PlanTarget, PlannedFile};
use knowledge::{Arch, WheelCode};
use pep440_rs::{Version, VersionSpecifiers};
use std::collections::BTreeMap;

/// Package, version, requirements, and the CUDA and code of the wheel's libraries.
type Row = (&'static str, &'static str, &'static str, Option<(u32, &'static str)>);

/// An index with these releases.
struct RecordedIndex {
    rows: Vec<Row>,
    /// Packages that were queried, and files that were read.
    asked: Vec<String>,
    reachable: bool,
}

impl RecordedIndex {
    fn new(rows: &[Row]) -> Self {
        Self { rows: rows.to_vec(), asked: Vec::new(), reachable: true }
    }
}

fn wheel(package: &str, version: &str, compiled: bool) -> PlannedFile {
    let tags = if compiled { "cp38-abi3-manylinux_2_28_x86_64" } else { "py3-none-any" };
    let name = format!("{}-{version}-{tags}.whl", package.replace('-', "_"));
    PlannedFile {
        url: Some(format!("https://files.example/{name}")),
        sha256: Some(format!("sha256 of {name}")),
        bytes: Some(1000),
        name,
    }
}

impl ReleaseSource for RecordedIndex {
    fn releases(
        &mut self,
        packages: &[(String, VersionSpecifiers)],
        skip: usize,
        count: usize,
    ) -> Result<BTreeMap<String, Vec<PublishedRelease>>, IndexError> {
        let mut found = BTreeMap::new();
        for (name, specifiers) in packages {
            self.asked.push(name.clone());
            if !self.reachable {
                let reason = "no route to host".to_owned();
                return Err(IndexError::Unreadable {
                    what: "https://pypi.org/simple".into(),
                    reason,
                });
            }
            let of_package = self.rows.iter().filter(|row| row.0 == name);
            if of_package.clone().next().is_none() {
                return Err(IndexError::Absent { package: name.clone(), url: "pypi".into() });
            }
            let within = of_package
                .clone()
                .filter(|row| specifiers.contains(&row.1.parse::<Version>().expect("a version")));
            let mut rows: Vec<_> = within.collect();
            if rows.is_empty() {
                rows.extend(of_package.take(1));
            }
            let release = |row: &&Row| PublishedRelease {
                version: row.1.to_owned(),
                python: ">=3.9".to_owned(),
                requires: row.2.lines().map(str::to_owned).collect(),
                files: vec![wheel(name, row.1, row.3.is_some())],
                source: format!("https://pypi.org/simple/{name}/"),
            };
            found.insert(name.clone(), rows.iter().skip(skip).take(count).map(release).collect());
        }
        Ok(found)
    }

    fn code(&mut self, wheels: &[PlannedFile]) -> Result<Vec<WheelCode>, IndexError> {
        let code = |file: &PlannedFile| {
            self.asked.push(file.name.clone());
            let row = self.rows.iter().find(|row| wheel(row.0, row.1, true) == *file);
            let (cuda, words) = row.and_then(|row| row.3).expect("a wheel with libraries");
            Ok(WheelCode::parse(Some(cuda), words).expect(words))
        };
        wheels.iter().map(code).collect()
    }
}

fn gpu(capability: (u32, u32), driver: Option<&str>) -> PlanTarget {
    let driver = driver.map(str::to_owned);
    PlanTarget { driver, ..target::with_gpu(capability, Arch::X86_64) }
}

fn planned(wants: &str, target: &PlanTarget, index: &mut RecordedIndex) -> InstallPlan {
    let plan = plan_with(&request(wants), target, index).expect("the index answers");
    plan.unwrap_or_else(|refusal| panic!("{wants}: {refusal:#?}"))
}

fn refused(wants: &str, target: &PlanTarget, index: &mut RecordedIndex) -> Box<PlanRefusal> {
    let refusal = plan_with(&request(wants), target, index).expect("the index answers");
    refusal.expect_err("no plan")
}

fn version<'a>(plan: &'a InstallPlan, name: &str) -> &'a str {
    let package = plan.packages.iter().find(|package| package.name == name);
    &package.unwrap_or_else(|| panic!("{name}: {:?}", packages(plan))).version
}

/// METADATA of sglang's releases, reduced to the lines about CUDA.
fn sglang() -> RecordedIndex {
    RecordedIndex::new(&[
        (
            "sglang",
            "0.5.23",
            "torch==2.14.1\nflashinfer_python[cu13]==0.7.2\nnvidia-cutlass-dsl[cu13]==4.8.0",
            None,
        ),
        ("sglang", "0.5.15", "torch==2.11.0\nnvidia-cutlass-dsl[cu13]==4.5.2", None),
        ("sglang", "0.5.9", "torch==2.9.1\nflashinfer_python==0.6.3\nsgl-kernel==0.3.21", None),
    ])
}

/// Row P02.
#[test]
fn requirements_of_cuda_13_are_not_planned_for_an_older_driver() {
    let plan = planned("sglang", &gpu((8, 6), Some("570.148.08")), &mut sglang());
    assert_eq!(version(&plan, "sglang"), "0.5.9");
    assert!(version(&plan, "torch").starts_with("2.9.1"), "{:?}", packages(&plan));
    assert!(plan.cuda.as_deref().is_some_and(|cuda| cuda.starts_with("12.")), "{:?}", plan.cuda);
    let newest = plan.rejected.iter().find(|row| row.candidate == "sglang 0.5.23").expect("a row");
    assert!(newest.reason.contains("cu13"), "{newest:?}");
    // Without a driver the newest is planned, with torch and CUDA (row D8).
    let plan = planned("sglang", &machine("a100"), &mut sglang());
    assert_eq!(version(&plan, "sglang"), "0.5.23");
    assert!(plan.cuda.as_deref().is_some_and(|cuda| cuda.starts_with("13.")), "{:?}", plan.cuda);
    let pinned = refused("sglang==0.5.23", &gpu((8, 6), Some("570.148.08")), &mut sglang());
    let facts: Vec<&str> = pinned.conflict.iter().map(|fact| fact.value.as_str()).collect();
    assert!(facts.iter().any(|fact| fact.contains("the driver is 570.148.08")), "{facts:?}");
}

/// Row P04: a release that the tables do not have.
#[test]
fn any_release_of_the_index_can_be_planned() {
    let code = Some((13, "sm_75 sm_80 sm_90"));
    let requires = "torch==2.11.0\nnvidia-cutlass-dsl[cu13]==4.5.2";
    let mut index = RecordedIndex::new(&[("vllm", "0.24.0", requires, code)]);
    let plan = planned("vllm==0.24.0", &gpu((9, 0), None), &mut index);
    assert_eq!((version(&plan, "vllm"), version(&plan, "torch")), ("0.24.0", "2.11.0"));
    assert_eq!(index.asked, ["vllm", "vllm-0.24.0-cp38-abi3-manylinux_2_28_x86_64.whl"]);
    let old = refused("vllm==0.24.0", &gpu((7, 0), None), &mut index);
    assert!(old.conflict.iter().any(|fact| fact.value.contains("7.0")), "{old:#?}");
}

/// Row P05: an unknown package is checked by its libraries.
#[test]
fn libraries_of_unknown_packages_are_compared_with_driver_and_gpu() {
    let rows = [
        ("onnxruntime-gpu", "1.27.0", "numpy>=1.21", Some((13, "sm_75 sm_80 compute_90"))),
        ("onnxruntime-gpu", "1.22.0", "numpy>=1.21", Some((12, "sm_60 sm_75 sm_80 compute_90"))),
    ];
    let old = gpu((8, 6), Some("570.148.08"));
    let plan = planned("onnxruntime-gpu", &old, &mut RecordedIndex::new(&rows));
    assert_eq!(version(&plan, "onnxruntime-gpu"), "1.22.0");
    let plan =
        planned("onnxruntime-gpu", &gpu((8, 6), Some("580.65.06")), &mut RecordedIndex::new(&rows));
    assert_eq!(version(&plan, "onnxruntime-gpu"), "1.27.0");
    let plan = planned("onnxruntime-gpu", &gpu((6, 1), None), &mut RecordedIndex::new(&rows));
    assert_eq!(version(&plan, "onnxruntime-gpu"), "1.22.0");
    let warned = plan.warnings.iter().any(|fact| fact.value.contains("needs CUDA 12"));
    assert!(warned, "{:?}", plan.warnings);
    let refusal = refused("onnxruntime-gpu", &gpu((5, 0), None), &mut RecordedIndex::new(&rows));
    assert!(!refusal.conflict.is_empty());
}

#[test]
fn releases_of_the_tables_are_not_queried() {
    let mut index = RecordedIndex::new(&[]);
    planned("flash-attn", &machine("h200"), &mut index);
    planned("vllm", &machine("h100"), &mut index);
    assert!(index.asked.is_empty(), "{:?}", index.asked);
}

#[test]
fn an_index_that_is_not_reached_leaves_a_note() {
    let mut index = RecordedIndex { reachable: false, ..sglang() };
    let plan = planned("sglang", &gpu((8, 6), Some("570.148.08")), &mut index);
    let noted = plan.warnings.iter().any(|fact| fact.value.contains("no route to host"));
    assert!(noted, "{:?}", plan.warnings);
    let absent = plan_with(&request("nopkg-xyz"), &machine("a10"), &mut sglang());
    assert!(matches!(absent, Err(IndexError::Absent { .. })), "{absent:?}");
}

#[test]
fn older_releases_are_read_until_one_fits() {
    let row = |number: usize| -> Row {
        let requires = if number < 20 { "nvidia-cublas-cu13\ntorch" } else { "torch" };
        let version: &'static str = format!("1.{}", 20 - number).leak();
        ("newer-than-the-driver", version, requires, None)
    };
    let rows: Vec<Row> = (0..=20).map(row).collect();
    let mut index = RecordedIndex::new(&rows);
    let plan = planned("newer-than-the-driver", &gpu((8, 6), Some("570.148.08")), &mut index);
    assert_eq!(version(&plan, "newer-than-the-driver"), "1.0");
    assert_eq!(index.asked.len(), 3, "in batches of eight: {:?}", index.asked);
}
