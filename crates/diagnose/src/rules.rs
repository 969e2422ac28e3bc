//! The rules, one file each.
//!
//! # Adding a rule
//!
//! 1. Write `rules/<name>.rs` with a `pub(super) const RULE: Rule`, its `check`, and its `cases`: at least one machine
//!    and environment with a finding and at least one without. The rule's id is the file's name with `-` for `_`.
//!    `about` gives the cause, the exact text a user would paste, and the fix. `texts` has the error messages, each
//!    with a recorded sample, and `remedy` the commands for a user who pasted one. A rule whose cause cannot be read
//!    from the machine's files has no `check`.
//! 2. Add the `mod` line below and a row to [`RULES`], whose order is the order of `explain`. If two rules have the
//!    same text, the earlier one is shown first unless the facts of this machine confirm the other.
//!
//! Tests compare the folder with the list, run every rule's cases, and reject a finding without evidence, without a
//! cause, or (above severity info) without commands. Tables of versions belong in `data/`, each row with its source
//! and date. Commands come from `remedy`, so that they use the environment's package manager and its Python.

mod bfloat16_needs_ampere;
mod bitsandbytes_library;
mod build_failed;
mod build_isolation;
mod build_out_of_memory;
mod capability_warning;
mod clocks_held_down;
mod conda_pip_mix;
mod container_device_nodes;
mod container_lost_gpus;
mod container_memory;
mod container_without_gpus;
mod conv_extension_missing;
mod cpu_only_jax;
mod cpu_only_torch;
mod cuda_home_not_set;
mod cuda_in_fork;
mod cuda_library_too_old;
mod cuda_versions;
mod damaged_files;
mod dependency_conflict;
mod device_permissions;
mod driver_library_mismatch;
mod driver_log;
mod driver_silent;
mod driver_too_old;
mod duplicate_dist;
mod duplicate_processes;
mod engine_core_failed;
mod executable_stack;
mod extension_new_abi;
mod extension_old_abi;
mod extension_other_cuda;
mod extension_other_torch;
mod fabric_manager;
mod fabric_slow;
mod fabric_wrong;
mod flash_attention_missing;
mod flash_attention_needs_ampere;
mod forward_compatibility;
mod gate_broadcast;
mod gcc_too_new;
mod glibc_too_old;
mod gpu_bits_differ;
mod gpu_busy;
mod gpu_check_ended;
mod gpu_kernels_fail;
mod gpu_memory_errors;
mod gpu_memory_test;
mod gpu_slower;
mod gpu_too_new;
mod gpu_too_old;
mod gpu_under_load;
mod gpu_unlike_siblings;
mod illegal_instruction;
mod incomplete_python;
mod iommu_breaks_peers;
mod jetson_missing_library;
mod jetson_server_wheel;
mod kernel_hub_variant;
mod kernel_syntax_error;
mod library_path_shadows;
mod libstdcxx_too_old;
mod mig_device;
mod missing_attribute;
mod missing_cuda_library;
mod missing_dependency;
mod missing_header;
mod missing_library;
mod missing_name;
mod mixed_cuda_majors;
mod mkl_too_new;
mod model_memory;
mod ninja_missing;
mod no_compiler;
mod no_driver;
mod no_kernel_image;
mod no_matching_distribution;
mod no_prebuilt_wheel;
mod nouveau;
mod numpy_abi;
mod nvcc_architecture;
mod nvlink_down;
mod nvml_not_supported;
mod old_python;
mod optional_type_drift;
mod other_python;
mod out_of_memory;
mod overwritten_files;
mod partial_package;
mod pcie_link;
mod peers_unreachable;
mod persistence_mode;
mod pkg_resources_gone;
mod processor_slower;
mod ptx_newer_than_driver;
mod python_outside_venv;
mod python_path;
mod rank_ended;
mod runtime_compiler_missing;
mod secure_boot;
mod shared_memory;
mod sibling_versions;
mod slow_hybrid_path;
mod sm103_miscompile;
mod stack_differs;
mod stale_process;
mod torch_minor_drift;
mod torch_pairs;
mod triton_hoist_tmem;
mod triton_ptxas_too_old;
mod triton_shared_memory;
mod undefined_symbol;
mod unknown_cuda_error;
mod visible_devices;
mod wrong_architecture;
mod wsl_gpu;
mod xid;

pub use crate::pasted_error::{Need, Observation, PastedError};
pub use crate::text::Text;
use facts::{Finding, FleetReport, GpusReport, Machine, PyEnv};
pub(crate) use missing_dependency::module_of;
pub use missing_dependency::{UnmetRequirement, unmet};

/// Every rule: first faults that stop a GPU, then faults of an environment, then advice.
pub const RULES: &[Rule] = &[
    driver_library_mismatch::RULE,
    driver_silent::RULE,
    xid::RULE,
    driver_log::OPEN_MODULES,
    driver_log::GSP_FIRMWARE,
    driver_log::BAR,
    driver_log::INITIALIZATION,
    gpu_memory_errors::RULE,
    gpu_memory_test::RULE,
    gpu_bits_differ::RULE,
    gpu_check_ended::RULE,
    gpu_kernels_fail::RULE,
    gpu_slower::RULE,
    gpu_under_load::RULE,
    fabric_wrong::RULE,
    fabric_slow::RULE,
    peers_unreachable::RULE,
    iommu_breaks_peers::RULE,
    rank_ended::RULE,
    stack_differs::RULE,
    processor_slower::RULE,
    nouveau::RULE,
    secure_boot::RULE,
    device_permissions::RULE,
    wsl_gpu::RULE,
    container_lost_gpus::RULE,
    container_device_nodes::RULE,
    driver_too_old::RULE,
    cpu_only_torch::RULE,
    cpu_only_jax::RULE,
    gpu_too_new::RULE,
    gpu_too_old::RULE,
    jetson_server_wheel::RULE,
    jetson_missing_library::RULE,
    no_kernel_image::RULE,
    capability_warning::RULE,
    cuda_versions::RULE,
    mixed_cuda_majors::RULE,
    damaged_files::RULE,
    overwritten_files::RULE,
    torch_pairs::RULE,
    python_outside_venv::RULE,
    conda_pip_mix::RULE,
    duplicate_dist::RULE,
    old_python::RULE,
    container_memory::RULE,
    shared_memory::RULE,
    numpy_abi::RULE,
    python_path::RULE,
    extension_new_abi::RULE,
    extension_old_abi::RULE,
    extension_other_torch::RULE,
    extension_other_cuda::RULE,
    glibc_too_old::RULE,
    libstdcxx_too_old::RULE,
    mkl_too_new::RULE,
    illegal_instruction::RULE,
    executable_stack::RULE,
    optional_type_drift::RULE,
    torch_minor_drift::RULE,
    bitsandbytes_library::RULE,
    conv_extension_missing::RULE,
    fabric_manager::RULE,
    flash_attention_needs_ampere::RULE,
    bfloat16_needs_ampere::RULE,
    flash_attention_missing::RULE,
    forward_compatibility::RULE,
    cuda_library_too_old::RULE,
    library_path_shadows::RULE,
    missing_cuda_library::RULE,
    missing_library::RULE,
    undefined_symbol::RULE,
    no_driver::RULE,
    unknown_cuda_error::RULE,
    gpu_busy::RULE,
    cuda_in_fork::RULE,
    container_without_gpus::RULE,
    visible_devices::RULE,
    mig_device::RULE,
    ptx_newer_than_driver::RULE,
    build_isolation::RULE,
    build_out_of_memory::RULE,
    cuda_home_not_set::RULE,
    nvcc_architecture::RULE,
    gcc_too_new::RULE,
    no_prebuilt_wheel::RULE,
    no_matching_distribution::RULE,
    no_compiler::RULE,
    runtime_compiler_missing::RULE,
    ninja_missing::RULE,
    pkg_resources_gone::RULE,
    incomplete_python::RULE,
    slow_hybrid_path::RULE,
    triton_ptxas_too_old::RULE,
    triton_shared_memory::RULE,
    triton_hoist_tmem::RULE,
    dependency_conflict::RULE,
    missing_dependency::RULE,
    missing_name::RULE,
    sibling_versions::RULE,
    partial_package::RULE,
    gate_broadcast::RULE,
    kernel_hub_variant::RULE,
    kernel_syntax_error::RULE,
    missing_attribute::RULE,
    missing_header::RULE,
    nvml_not_supported::RULE,
    out_of_memory::RULE,
    sm103_miscompile::RULE,
    wrong_architecture::RULE,
    other_python::RULE,
    nvlink_down::RULE,
    pcie_link::RULE,
    clocks_held_down::RULE,
    gpu_unlike_siblings::RULE,
    persistence_mode::RULE,
    duplicate_processes::RULE,
    stale_process::RULE,
    model_memory::RULE,
    build_failed::RULE,
    engine_core_failed::RULE,
];

/// The input of the rules.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The Python environments that were read.
    pub envs: &'a [PyEnv],
}

impl<'a> Context<'a> {
    /// The machine's NVIDIA driver.
    pub(crate) fn driver(&self) -> Option<&'a facts::Driver> {
        self.machine.driver.as_ref()
    }
}

/// A known fault, and the text of `firstlight explain` about it.
#[derive(Debug)]
pub struct Rule {
    /// Stable id in kebab case: `cpu-only-torch`.
    pub id: &'static str,
    /// One line, without a full stop.
    pub title: &'static str,
    /// Cause, symptom (with the exact message) and fix. Paragraphs are separated by an empty line and may be
    /// rewrapped; lines that begin with two spaces are printed verbatim.
    pub about: &'static str,
    /// Public issue threads or documents.
    pub links: &'static [&'static str],
    /// The error messages, each with a recorded sample; empty for a fault without any message.
    pub texts: &'static [Text],
    /// Other causes of the same messages; empty if a message proves this rule's cause.
    pub also: &'static [Also],
    /// The rank of its messages in a log that also has messages of other rules.
    pub role: Role,
    /// Commands for a user who pasted such a message, if the rule has no finding on this machine.
    pub remedy: fn(&PastedError) -> Vec<String>,
    /// The facts without which an empty result of `check` proves nothing.
    pub needs: &'static [Need],
    /// Finds the fault without I/O, in the order of the environments. `None` if only a message shows it.
    pub check: Option<fn(&Context) -> Vec<Finding>>,
    /// Finds the fault in the report of `firstlight check` on the machine's GPUs.
    pub check_gpus: Option<fn(&GpusReport) -> Vec<Finding>>,
    /// Finds the fault between the ranks of a fleet check.
    pub check_fleet: Option<fn(&FleetReport) -> Vec<Finding>>,
    /// Checks a condition that is a fault only if its message was printed (a missing nvcc matters only to a build).
    /// The function returns `None` if the facts of this machine do not decide.
    pub observe: Option<fn(&PastedError) -> Option<Observation>>,
    /// Machines and environments with and without a finding of this rule.
    #[cfg(test)]
    pub(crate) cases: fn() -> Vec<crate::test_support::Case>,
}

/// Another cause of a rule's messages.
#[derive(Debug)]
pub struct Also {
    /// The cause, in one sentence.
    pub cause: &'static str,
    /// Commands that distinguish it from the rule's cause.
    pub check: &'static [&'static str],
}

/// The rank of a rule's messages in a log that has messages of several rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A cause. The first one in a log is shown first, because later ones may follow from it.
    Cause,
    /// A remark that a working program prints as well.
    Notice,
    /// A consequence of an earlier error, which the log has above it.
    Consequence,
}

impl Rule {
    /// The default of every field.
    pub(crate) const BLANK: Self = Self {
        id: "",
        title: "",
        about: "",
        links: &[],
        texts: &[],
        also: &[],
        role: Role::Cause,
        remedy: |_| Vec::new(),
        needs: &[],
        check: None,
        check_gpus: None,
        check_fleet: None,
        observe: None,
        #[cfg(test)]
        cases: Vec::new,
    };
}
