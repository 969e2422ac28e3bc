//! Locked packages of a newer CUDA release than the driver runs.

use facts::{Fact, InstallPlan, PlannedPackage};
use knowledge::cuda_drivers::{CudaSupport, minimum_driver};

/// A warning for each package whose name or version is of a newer CUDA release than the target's driver runs.
pub(super) fn newer_than_driver(plan: &InstallPlan) -> Vec<Fact<String>> {
    let driver = plan.target.driver.as_deref().filter(|_| !plan.target.tegra);
    let Some(reach) = CudaSupport::of(plan.target.cuda_limit, driver) else { return Vec::new() };
    let warning = |package: &PlannedPackage| {
        let cuda = cuda_of(package).filter(|cuda| *cuda > reach.major)?;
        let row = minimum_driver(cuda)?;
        let text = format!(
            "{} {} is of CUDA {cuda}, which needs driver {} or newer; this driver runs CUDA {}",
            package.name, package.version, row.driver, reach.major
        );
        Some(Fact::new(text, row.source.to_string()))
    };
    plan.packages.iter().filter_map(warning).collect()
}

/// The CUDA major version in a package's name (`nvidia-nccl-cu13`), its local version (`+cu130`), or the version of the CUDA
/// runtime itself.
fn cuda_of(package: &PlannedPackage) -> Option<u32> {
    let major = |tag: &str| -> Option<u32> {
        let digits = tag.strip_prefix("cu")?;
        let number = matches!(digits.len(), 2 | 3) && digits.bytes().all(|b| b.is_ascii_digit());
        number.then(|| digits[..2].parse().ok())?
    };
    let in_name = package.name.rsplit_once('-').and_then(|(_, last)| major(last));
    let in_label = package.version.split_once('+').and_then(|(_, label)| major(label));
    let runtime = matches!(package.name.as_str(), "nvidia-cuda-runtime" | "cuda-toolkit");
    let of_runtime = || package.version.split('.').next().filter(|_| runtime)?.parse().ok();
    in_name.or(in_label).or_else(of_runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PlanRequest, RequestedPackage, plan, target};
    use facts::PlanTarget;
    use knowledge::Arch;

    #[test]
    fn packages_of_cuda_13_are_named_for_a_driver_of_cuda_12() {
        let machine = target::with_gpu((8, 6), Arch::X86_64);
        let old = PlanTarget { driver: Some("570.148.08".to_owned()), ..machine };
        let wants = vec![RequestedPackage::parse("torch", "requirement").expect("a requirement")];
        let request = PlanRequest { wants, ..PlanRequest::default() };
        let mut plan = plan(&request, &old).expect("a plan");
        assert!(newer_than_driver(&plan).is_empty(), "{:?}", plan.packages);
        let package = |name: &str, version: &str| PlannedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            ..plan.packages[0].clone()
        };
        let added = [
            package("nvidia-cuda-runtime", "13.0.96"),
            package("nvidia-nccl-cu13", "2.30.7"),
            package("x", "1.0+cu130"),
            package("nvidia-nccl-cu12", "2.30.7"),
            package("nvidia-ml-py", "13.615.71"),
            package("nvidia-cufft", "12.0.0.61"),
        ];
        plan.packages.extend(added);
        let warnings = newer_than_driver(&plan);
        let named: Vec<&str> =
            warnings.iter().filter_map(|fact| fact.value.split(' ').next()).collect();
        assert_eq!(named, ["nvidia-cuda-runtime", "nvidia-nccl-cu13", "x"]);
        plan.target.driver = Some("580.65.06".to_owned());
        assert!(newer_than_driver(&plan).is_empty());
    }
}
