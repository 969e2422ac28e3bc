//! The catalogue of known failures: for each row at least one pair of environments, one file each.
//!
//! To add a pair, add a file with a `pub(super) const PAIR`, named after the row and its subject, the `mod` line and the
//! line in [`ROWS`]. `found` states how the row is found: by files, or by its error message if no file shows it.

mod row_01_new_abi;
mod row_02_old_abi;
mod row_03_set_device;
mod row_04_other_torch;
mod row_05_optional;
mod row_06_glibc;
mod row_06_libstdcxx;
mod row_07_cpu_only;
mod row_08_blackwell;
mod row_08_extension;
mod row_09_pascal;
mod row_10_thor;
mod row_11_orin;
mod row_12_benign_warning;
mod row_13_ptxas;
mod row_14_ptx;
mod row_15_missing_library;
mod row_15_mixed_majors;
mod row_16_library_path;
mod row_17_driver;
mod row_18_compat_library;
mod row_18_fabric_manager;
mod row_19_driver_library;
mod row_20_slow_path;
mod row_21_conv_extension;
mod row_22_build_isolation;
mod row_23_toolkit;
mod row_24_killed;
mod row_24_no_toolkit;
mod row_24_no_wheel;
mod row_25_bitsandbytes;
mod row_26_torchvision;
mod row_27_kernel_hub;
mod row_28_miscompile;
mod row_29_processor;
mod row_30_orphan;
mod row_31_turing;

use crate::judge::Pair;
use crate::library::Library;
use crate::world::World;

/// Rows of the catalogue and their pairs.
pub(crate) const ROWS: &[(u32, Pair)] = &[
    (1, row_01_new_abi::PAIR),
    (2, row_02_old_abi::PAIR),
    (3, row_03_set_device::PAIR),
    (4, row_04_other_torch::PAIR),
    (5, row_05_optional::PAIR),
    (6, row_06_glibc::PAIR),
    (6, row_06_libstdcxx::PAIR),
    (7, row_07_cpu_only::PAIR),
    (8, row_08_blackwell::PAIR),
    (8, row_08_extension::PAIR),
    (9, row_09_pascal::PAIR),
    (10, row_10_thor::PAIR),
    (11, row_11_orin::PAIR),
    (12, row_12_benign_warning::PAIR),
    (13, row_13_ptxas::PAIR),
    (14, row_14_ptx::PAIR),
    (15, row_15_missing_library::PAIR),
    (15, row_15_mixed_majors::PAIR),
    (16, row_16_library_path::PAIR),
    (17, row_17_driver::PAIR),
    (18, row_18_compat_library::PAIR),
    (18, row_18_fabric_manager::PAIR),
    (19, row_19_driver_library::PAIR),
    (20, row_20_slow_path::PAIR),
    (21, row_21_conv_extension::PAIR),
    (22, row_22_build_isolation::PAIR),
    (23, row_23_toolkit::PAIR),
    (24, row_24_killed::PAIR),
    (24, row_24_no_toolkit::PAIR),
    (24, row_24_no_wheel::PAIR),
    (25, row_25_bitsandbytes::PAIR),
    (26, row_26_torchvision::PAIR),
    (27, row_27_kernel_hub::PAIR),
    (28, row_28_miscompile::PAIR),
    (29, row_29_processor::PAIR),
    (30, row_30_orphan::PAIR),
    (31, row_31_turing::PAIR),
];

/// torch's extension: opening it is what `import torch` does.
pub(crate) const TORCH: &str = "torch/_C.cpython-312-x86_64-linux-gnu.so";
/// flash-attn's extension.
pub(crate) const FLASH: &str = "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so";

/// c10::Error's constructor in the new and in the old C++ ABI.
pub(crate) const NEW: &str =
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
pub(crate) const OLD: &str = "_ZN3c105ErrorC2ENS_14SourceLocationESs";

/// An A10 with a torch whose libc10.so exports one symbol, and a flash-attn that needs another.
pub(crate) fn extension(torch: &str, exported: &str, wanted: &str) -> World {
    let c10 = Library::named("libc10.so");
    World::on("a10")
        .torch(torch, &[exported], &[])
        .dist("flash_attn", "2.8.3", &[FLASH])
        .library(FLASH, &Library::new().linked_with(&c10).wants(&[wanted]))
}

/// flash-attn, linked with this version of a system library.
pub(crate) fn linked_with(world: World, library: &Library, wanted: &str) -> World {
    world
        .dist("flash_attn", "2.8.3", &[FLASH])
        .library(FLASH, &Library::new().linked_with(library).wants(&[wanted]))
}

/// An extension of a package with one container of GPU code.
pub(crate) fn kernels(
    world: World,
    dist: &str,
    version: &str,
    file: &str,
    images: &[&str],
) -> World {
    let file = world.extension(file);
    world.dist(dist, version, &[&file]).library(&file, &Library::new().code(images))
}
