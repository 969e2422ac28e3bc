//! Environments on this machine, checked by the built command: doctor's findings about the files, the result of this
//! system's dynamic loader, and explain's rule for the loader's message have to agree.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod world;

use world::{TORCH, World};

const NEW: &str =
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
const OLD: &str = "_ZN3c105ErrorC2ENS_14SourceLocationESs";

/// An extension that needs one symbol of libc10.so, and a torch whose libc10.so exports another.
fn extension(torch: &str, exported: &str, wanted: &str) -> World {
    let world = World::with_torch(torch, exported);
    world.dist("flash_attn", "2.8.3", &["flash_attn_2_cuda.so"]);
    let source =
        format!("void f(void) __asm__(\"{wanted}\"); int which(void) {{ f(); return 1; }}");
    world.library(
        "flash_attn_2_cuda.so",
        &source,
        &["-Wl,--no-as-needed", "site:torch/lib/libc10.so"],
    );
    world
}

#[test]
fn row_1_new_abi_extension_with_old_abi_torch() {
    let world = extension("2.6.0+cu124", OLD, NEW);
    world.breaks(
        "extension-new-abi",
        &[TORCH, "flash_attn_2_cuda.so"],
        &format!("undefined symbol: {NEW}"),
    );
    extension("2.6.0+cu124", OLD, OLD).works(&[TORCH, "flash_attn_2_cuda.so"]);
}

#[test]
fn row_2_old_abi_extension_with_new_abi_torch() {
    let world = extension("2.9.1+cu128", NEW, OLD);
    world.breaks(
        "extension-old-abi",
        &[TORCH, "flash_attn_2_cuda.so"],
        &format!("undefined symbol: {OLD}"),
    );
    extension("2.9.1+cu128", NEW, NEW).works(&[TORCH, "flash_attn_2_cuda.so"]);
}

#[test]
fn row_3_different_torch_minor() {
    let forms =
        ["_ZN3c104cuda9SetDeviceEi", "_ZN3c104cuda9SetDeviceEa", "_ZN3c104cuda9SetDeviceEab"];
    for (here, wanted) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let world = extension("2.9.1+cu128", forms[here], forms[wanted]);
        let words = format!("undefined symbol: {}", forms[wanted]);
        world.breaks("torch-minor-drift", &[TORCH, "flash_attn_2_cuda.so"], &words);
    }
    extension("2.9.1+cu128", forms[2], forms[2]).works(&[TORCH, "flash_attn_2_cuda.so"]);
}

#[test]
fn row_4_different_torch_build() {
    let old = "_ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEERKNS_14SourceLocationESsb";
    let new = "_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationESsb";
    let world = extension("2.1.2+cu121", old, new);
    world.breaks(
        "extension-other-torch",
        &[TORCH, "flash_attn_2_cuda.so"],
        &format!("undefined symbol: {new}"),
    );
}

#[test]
fn row_5_c10_optional_with_std_optional_torch() {
    let old = "_ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEENS6_INS5_6LayoutEEENS6_INS5_6DeviceEEENS6_IbEENS6_INS5_12MemoryFormatEEE";
    let new = "_ZN2at4_ops10zeros_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE";
    for (here, wanted) in [(new, old), (old, new)] {
        let world = extension("2.5.1+cu124", here, wanted);
        let words = format!("undefined symbol: {wanted}");
        world.breaks("optional-type-drift", &[TORCH, "flash_attn_2_cuda.so"], &words);
    }
}

/// An extension that needs a symbol version of a library, and was linked with a copy that is removed.
fn versioned(library: &str, version: &str) -> World {
    let world = World::with_torch("2.6.0+cu124", OLD);
    world.dist("flash_attn", "2.8.3", &["flash_attn_2_cuda.so"]);
    let script = world.version_script(&format!("{version} {{ global: newer; }};"));
    let soname = format!("-Wl,-soname,{library}");
    world.library(&format!("gone/{library}"), "void newer(void) {}", &[&soname, &script]);
    let source = "void newer(void); int which(void) { newer(); return 1; }";
    world.library("flash_attn_2_cuda.so", source, &[&format!("site:gone/{library}")]);
    std::fs::remove_dir_all(world.site("gone")).unwrap();
    world
}

#[test]
fn row_6_newer_glibc_required() {
    let world = versioned("libc.so.6", "GLIBC_2.99");
    world.breaks(
        "glibc-too-old",
        &[TORCH, "flash_attn_2_cuda.so"],
        "version `GLIBC_2.99' not found (required by",
    );
    // The oldest glibc version of this architecture.
    let oldest = if cfg!(target_arch = "aarch64") { "GLIBC_2.17" } else { "GLIBC_2.2.5" };
    let world = World::with_torch("2.6.0+cu124", OLD);
    world.dist("flash_attn", "2.8.3", &["flash_attn_2_cuda.so"]);
    let script = world.version_script(&format!("{oldest} {{ global: free; }};"));
    world.library("gone/libc.so.6", "void free(void *p) {}", &["-Wl,-soname,libc.so.6", &script]);
    let source = "void free(void *); int which(void) { free(0); return 1; }";
    world.library("flash_attn_2_cuda.so", source, &["site:gone/libc.so.6"]);
    std::fs::remove_dir_all(world.site("gone")).unwrap();
    world.works(&[TORCH, "flash_attn_2_cuda.so"]);
}

#[test]
fn row_6_older_libstdcxx_found_first() {
    let old = |world: World| {
        let script = world.version_script("GLIBCXX_3.4.30 { global: older; };");
        world.outside(
            "old/libstdc++.so.6",
            "void older(void) {}",
            &["-Wl,-soname,libstdc++.so.6", &script],
        );
        world.with_ld_library_path("old")
    };
    let world = old(versioned("libstdc++.so.6", "GLIBCXX_3.4.99"));
    world.breaks(
        "libstdcxx-too-old",
        &[TORCH, "flash_attn_2_cuda.so"],
        "version `GLIBCXX_3.4.99' not found",
    );
    let world = old(versioned("libstdc++.so.6", "GLIBCXX_3.4.30"));
    // The old copy has the version and only lacks the symbol, so this rule does not apply.
    assert!(!world.rules().contains(&"libstdcxx-too-old".to_owned()));
}

#[test]
fn row_15_mixed_cuda_majors() {
    let build = |keep: bool| {
        let world = World::with_torch("2.11.0+cu130", NEW);
        world.dist("flash_attn", "2.8.3", &["flash_attn_2_cuda.so"]);
        world.library(
            "nvidia/lib/libcudart.so.12",
            "int cuda(void) { return 1; }",
            &["-Wl,-soname,libcudart.so.12"],
        );
        let source = "int cuda(void); int which(void) { return cuda(); }";
        let path = "-Wl,-rpath,$ORIGIN/nvidia/lib";
        world.library("flash_attn_2_cuda.so", source, &["site:nvidia/lib/libcudart.so.12", path]);
        if !keep {
            std::fs::remove_dir_all(world.site("nvidia")).unwrap();
        }
        world
    };
    let words = "libcudart.so.12: cannot open shared object file: No such file or directory";
    build(false).breaks("missing-cuda-library", &[TORCH, "flash_attn_2_cuda.so"], words);
    build(true).works(&[TORCH, "flash_attn_2_cuda.so"]);
}

#[test]
fn row_16_ld_library_path_overrides_wheels() {
    let build = |version: &str| {
        let world = World::with_torch("2.5.1+cu124", OLD);
        world.dist(
            "nvidia_cusparse_cu12",
            "12.3.1.170",
            &["nvidia/cusparse/lib/libcusparse.so.12"],
        );
        world.dist(
            "nvidia_nvjitlink_cu12",
            "12.4.127",
            &["nvidia/nvjitlink/lib/libnvJitLink.so.12"],
        );
        let script = world.version_script("libnvJitLink.so.12 { global: *; };");
        let soname = "-Wl,-soname,libnvJitLink.so.12";
        let source = |version: &str| format!("void __nvJitLinkComplete_{version}(void) {{}}");
        let own = "nvidia/nvjitlink/lib/libnvJitLink.so.12";
        world.library(own, &source("12_4"), &[soname, &script]);
        world.outside("cuda/lib64/libnvJitLink.so.12", &source(version), &[soname, &script]);
        let caller = "void __nvJitLinkComplete_12_4(void); int which(void) { __nvJitLinkComplete_12_4(); return 1; }";
        let path = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../../nvjitlink/lib";
        let name = "-Wl,-soname,libcusparse.so.12";
        world.library(
            "nvidia/cusparse/lib/libcusparse.so.12",
            caller,
            &[&format!("site:{own}"), path, name],
        );
        world
    };
    let cusparse = "nvidia/cusparse/lib/libcusparse.so.12";
    build("12_1").with_ld_library_path("cuda/lib64").breaks(
        "library-path-shadows",
        &[TORCH, cusparse],
        "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
    );
    // Without the variable everything loads; with a folder that has the symbol it loads too, with a warning.
    build("12_1").works(&[TORCH, cusparse]);
    let world = build("12_4").with_ld_library_path("cuda/lib64");
    assert_eq!(world.rules(), ["library-path-shadows"]);
    world.works(&[TORCH, cusparse]);
}

#[test]
fn row_29_wrong_processor() {
    let world = extension("2.9.1+cu128", NEW, NEW);
    let path = world.site("flash_attn_2_cuda.so");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    std::fs::write(&path, bytes).unwrap();
    assert!(world.rules().contains(&"wrong-architecture".to_owned()), "{:?}", world.rules());
    assert!(!world.open(&["flash_attn_2_cuda.so"])[0].starts_with("opened"));
}
