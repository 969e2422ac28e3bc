use crate::gpu;
use crate::torch_build::linux_arch;
use facts::{Driver, Machine, MachineKind, PyEnv};
use knowledge::cuda_drivers::{CudaSupport, preference};
use knowledge::torch_builds::{Build, builds};
use knowledge::torch_series;
use knowledge::{Minor, Version, minor_of};

/// A published torch that fits a machine and an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// torch series.
    pub(crate) torch: Minor,
    /// The version constraint of torch: the installed release if its series fits, else `==2.9.*`.
    pub(crate) constraint: String,
    /// CUDA release, which selects the index.
    pub(crate) cuda: Minor,
}

/// The CUDA releases that a driver accepts: by its own limit, else by its version; `None` if neither is known.
pub(crate) fn reach(machine: &Machine, driver: &Driver) -> Option<CudaSupport> {
    let limit = driver.cuda_limit.as_ref().map(|limit| limit.value);
    // Tegra's driver has separate version numbers that the table of driver floors does not cover.
    let version = driver.version().filter(|_| machine.kind != MachineKind::Jetson);
    CudaSupport::of(limit, version.map(|version| version.value.as_str()))
}

/// The published CUDA build nearest to the installed torch that has code for every GPU here, runs on the driver and has
/// a wheel for the environment's Python. `None` if no published build fits, as on a Jetson Orin.
pub(crate) fn choose(
    machine: &Machine,
    env: &PyEnv,
    installed: Option<&Version>,
) -> Option<Choice> {
    choose_without(machine, env, installed, None)
}

/// The same, without the builds of one label, such as `cu128`.
pub(crate) fn choose_without(
    machine: &Machine,
    env: &PyEnv,
    installed: Option<&Version>,
    label: Option<&str>,
) -> Option<Choice> {
    let excluded = label.and_then(knowledge::cuda_of_label);
    let arch = linux_arch(machine)?;
    let gpus = gpu::capabilities(machine);
    let reach = machine.driver.as_ref().and_then(|driver| reach(machine, driver));
    let python = env.interpreter.version.as_ref().and_then(|fact| minor_of(&fact.value));
    let fits = |build: &Build| {
        build.offered
            && build.arch == arch
            && excluded != Some((build.cuda.0, Some(build.cuda.1)))
            && reach.is_none_or(|reach| build.cuda.0 <= reach.major)
            && gpus.iter().all(|(_, sm)| match machine.kind {
                MachineKind::Jetson => build.sm.contains(sm),
                _ => build.runs_on(*sm),
            })
    };
    let has_wheel = |torch: Minor| match (torch_series::series(torch), python) {
        (Some(row), Some(python)) => (row.python.0..=row.python.1).contains(&python),
        (row, None) => row.is_some(),
        (None, Some(_)) => false,
    };
    let wanted = installed.map(Version::minor);
    let newest = torch_series::all().last().map_or((2, 0), |row| row.torch);
    let candidates = builds().iter().filter(|build| fits(build)).flat_map(|build| {
        build.torch.iter().filter(|torch| has_wheel(**torch)).map(|torch| (*torch, build.cuda))
    });
    let (torch, cuda) = candidates.min_by_key(|(torch, cuda)| {
        let distance = wanted.unwrap_or(newest).1.abs_diff(torch.1);
        // Within a series, the CUDA release nearest to the driver's limit, from below if there is one. Two series at
        // the same distance cannot both fit if the installed one does not: the releases that fit are consecutive.
        (distance, preference(*cuda, reach))
    })?;
    let kept = installed.filter(|version| version.is_final() && version.minor() == torch);
    let constraint = match kept {
        Some(version) => format!("=={}", version.public()),
        None => format!("=={}.{}.*", torch.0, torch.1),
    };
    Some(Choice { torch, constraint, cuda })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{env, machines};
    use facts::Fact;

    fn check(machine: &Machine, python: &str, installed: &str, expect: Option<(&str, Minor)>) {
        let env = env("/v").python(python).build();
        let version = Version::parse(installed);
        let got = choose(machine, &env, version.as_ref());
        let got = got.as_ref().map(|choice| (choice.constraint.as_str(), choice.cuda));
        assert_eq!(
            got,
            expect,
            "{installed} on {:?}",
            machine.gpus.first().map(|gpu| &gpu.name.value)
        );
    }

    #[test]
    fn chooses_the_nearest_build_that_fits() {
        // The same series, if the platform has a CUDA build of it.
        check(&machines::gh200(), "3.12.3", "2.9.0+cpu", Some(("==2.9.0", (12, 8))));
        check(&machines::h200(), "3.12.3", "2.11.0+cpu", Some(("==2.11.0", (13, 0))));
        check(&machines::a10(), "3.11.9", "2.6.0+cpu", Some(("==2.6.0", (12, 6))));
        // Driver 550 reports CUDA 12.4: the lowest 12.x above it runs by minor version compatibility.
        check(&machines::rtx4090(), "3.12.3", "2.9.1+cpu", Some(("==2.9.1", (12, 6))));
        check(&machines::rtx4090(), "3.12.3", "2.5.1+cpu", Some(("==2.5.1", (12, 4))));
        // 2.15 has no CUDA 12 build: one series back.
        check(&machines::rtx4090(), "3.12.3", "2.15.0+cu132", Some(("==2.14.*", (12, 6))));
        // 2.3 has no CUDA wheel on aarch64; the nearest series has one.
        check(&machines::gh200(), "3.10.12", "2.3.1", Some(("==2.4.*", (12, 4))));
        check(&machines::gb10(), "3.12.3", "2.6.0", Some(("==2.7.*", (12, 8))));
        // Wheels of 2.4 support Python up to 3.12.
        check(&machines::gh200(), "3.13.1", "2.3.1", Some(("==2.6.*", (12, 6))));
        // No published build has code for a Jetson Orin; on macOS there is no CUDA.
        check(&machines::jetson_orin(), "3.10.12", "2.9.1", None);
        check(&machines::m3_max(), "3.12.3", "2.9.1", None);
    }

    #[test]
    fn driver_reach_is_the_limit_else_from_the_version() {
        let mut machine = machines::rtx4090();
        let driver = machine.driver.as_mut().expect("a driver");
        driver.cuda_limit = None;
        let driver = driver.clone();
        assert_eq!(reach(&machine, &driver), Some(CudaSupport { major: 12, limit: None }));
        check(&machine, "3.12.3", "2.9.1", Some(("==2.9.1", (12, 6))));
        let newer = Driver { kernel_module: Some(Fact::new("595.10".into(), "test")), ..driver };
        assert_eq!(reach(&machine, &newer), Some(CudaSupport { major: 13, limit: None }));
        machine.driver = None;
        check(&machine, "3.12.3", "2.12.0", Some(("==2.12.0", (12, 6))));
        let mut jetson = machines::jetson_orin();
        let driver = jetson.driver.as_mut().expect("a driver");
        driver.cuda_limit = None;
        let driver = driver.clone();
        assert_eq!(reach(&jetson, &driver), None);
    }
}
