//! Healthy environments, one file each, and for each a twin that is broken by one change. The rule finds the twin, so it
//! would also find the healthy environment if that were broken.
//!
//! To add one, add a file with a `pub(super) const PAIR`, named after its subject, the `mod` line and the line in
//! [`HEALTHY`].

mod apple_silicon;
mod bitsandbytes_many;
mod built_with_numpy_2;
mod bundled_libraries;
mod compat_on_data_centre_gpu;
mod conda_newer_libstdcxx;
mod conda_torch;
mod copy_where_torch_looks;
mod cpu_torch_without_gpu;
mod driver_mounted_in_container;
mod editable_install;
mod empty_on_gpu;
mod family_cubin_b300;
mod family_cubin_gb10;
mod family_cubin_not_onward;
mod flash_attention_with_turing;
mod gh200_arm_wheels;
mod h200_cuda_wheels;
mod jetson_nvidia_wheel;
mod lib64_link;
mod library_named_by_import;
mod library_within_reach;
mod namespace_package;
mod newer_cudart;
mod nightly_torch;
mod one_build_per_torch;
mod origin_chain;
mod ptx_for_newer_gpu;
mod requirement_of_an_extra;
mod rocm_torch;
mod rtx4090_minor_version;
mod rtx4090_older_cubin;
mod same_library_by_path;
mod stable_abi;
mod symlinked_library;
mod system_python;
mod torch_s_own_nccl;
mod torchvision_for_later_torch;
mod triton_second_ptxas;
mod two_libraries_of_one_package;
mod whole_library;
mod worker_in_container;
mod workers_of_one_run;
mod working_folder;

use crate::judge::Pair;

/// Every healthy environment: machines, then drivers and GPU code, then files, then metadata and shells.
pub(crate) const HEALTHY: &[Pair] = &[
    empty_on_gpu::PAIR,
    cpu_torch_without_gpu::PAIR,
    rocm_torch::PAIR,
    apple_silicon::PAIR,
    h200_cuda_wheels::PAIR,
    gh200_arm_wheels::PAIR,
    jetson_nvidia_wheel::PAIR,
    rtx4090_minor_version::PAIR,
    rtx4090_older_cubin::PAIR,
    ptx_for_newer_gpu::PAIR,
    family_cubin_b300::PAIR,
    family_cubin_gb10::PAIR,
    family_cubin_not_onward::PAIR,
    triton_second_ptxas::PAIR,
    flash_attention_with_turing::PAIR,
    compat_on_data_centre_gpu::PAIR,
    driver_mounted_in_container::PAIR,
    worker_in_container::PAIR,
    workers_of_one_run::PAIR,
    stable_abi::PAIR,
    one_build_per_torch::PAIR,
    built_with_numpy_2::PAIR,
    bundled_libraries::PAIR,
    whole_library::PAIR,
    library_named_by_import::PAIR,
    two_libraries_of_one_package::PAIR,
    copy_where_torch_looks::PAIR,
    origin_chain::PAIR,
    library_within_reach::PAIR,
    symlinked_library::PAIR,
    same_library_by_path::PAIR,
    newer_cudart::PAIR,
    torch_s_own_nccl::PAIR,
    bitsandbytes_many::PAIR,
    conda_newer_libstdcxx::PAIR,
    conda_torch::PAIR,
    lib64_link::PAIR,
    editable_install::PAIR,
    namespace_package::PAIR,
    requirement_of_an_extra::PAIR,
    torchvision_for_later_torch::PAIR,
    nightly_torch::PAIR,
    system_python::PAIR,
    working_folder::PAIR,
];
