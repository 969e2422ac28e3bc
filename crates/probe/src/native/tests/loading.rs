//! Found and missing libraries, and the agreement of the real loader.

use super::world::{World, of};
use facts::FoundBy;

const NEW: &str =
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
const OLD: &str = "_ZN3c105ErrorC2ENS_14SourceLocationESs";

/// A torch whose libc10 exports one symbol, and an extension that needs another.
fn torch_and_extension(exported: &str, wanted: &str) -> World {
    let world = World::new();
    let export = format!("void f(void) __asm__(\"{exported}\"); void f(void) {{}}");
    world.write("lib/python3.12/site-packages/torch/lib/empty", "");
    world.library("torch/lib/libc10.so", &export, &["-Wl,-soname,libc10.so"]);
    world.library(
        "torch/_C.cpython-312-x86_64-linux-gnu.so",
        "void Py_Initialize(void); void *init(void) { return Py_Initialize; }",
        &["-Wl,--no-as-needed", "site:torch/lib/libc10.so", "-Wl,-rpath,$ORIGIN/lib"],
    );
    let want = format!("void f(void) __asm__(\"{wanted}\"); int which(void) {{ f(); return 7; }}");
    world.library("flash.so", &want, &["-Wl,--no-as-needed", "site:torch/lib/libc10.so"]);
    world
}

#[test]
fn extension_for_the_other_cxx_abi_is_reported() {
    let world = torch_and_extension(OLD, NEW);
    let elf = world.elf("flash.so");
    assert_eq!(elf.needed[0].found_by, Some(FoundBy::Loaded), "torch has it in the process");
    assert_eq!(elf.missing_symbols_total, 1);
    let missing = &elf.missing_symbols[0];
    assert_eq!(missing.symbol, NEW);
    assert!(
        missing.demangled.as_ref().unwrap().starts_with("c10::Error::Error(c10::SourceLocation, ")
    );
    assert_eq!(missing.instead[0].symbol, OLD);
    assert_eq!(missing.instead[0].path, world.site("torch/lib/libc10.so").to_str().unwrap());
    let said = world.open(&["torch/_C.cpython-312-x86_64-linux-gnu.so", "flash.so"]);
    assert_eq!(said[0], "opened 0");
    assert!(said[1].ends_with(&format!("undefined symbol: {NEW}")), "{said:?}");
}

#[test]
fn matching_extension_has_no_problem() {
    let world = torch_and_extension(NEW, NEW);
    let elf = world.elf("flash.so");
    assert_eq!((elf.missing_symbols_total, elf.missing_versions.len()), (0, 0), "{elf:?}");
    let said = world.open(&["torch/_C.cpython-312-x86_64-linux-gnu.so", "flash.so"]);
    assert_eq!(said, ["opened 0", "opened 7"]);
}

#[test]
fn missing_weak_symbols_are_no_problem() {
    let world = World::new();
    world.library(
        "weak.so",
        "void gone(void) __attribute__((weak)); int which(void) { return gone ? 1 : 2; }",
        &[],
    );
    assert_eq!(world.elf("weak.so").missing_symbols_total, 0);
    assert_eq!(world.open(&["weak.so"]), ["opened 2"]);
}

/// A library in two versions: the extension is linked with the newer and loads the older.
fn versioned(extension: &str, older: &str) -> World {
    let world = World::new();
    let script =
        world.write("new.map", "GLIBCXX_3.4.30 { global: a; }; GLIBCXX_3.4.32 { global: b; };");
    let script = format!("-Wl,--version-script={}", script.display());
    let soname = "-Wl,-soname,libcxx.so.6";
    world.library("lib/libcxx.so.6", "void a(void) {} void b(void) {}", &[soname, &script]);
    world.library("ext.so", extension, &["site:lib/libcxx.so.6", "-Wl,-rpath,$ORIGIN/lib"]);
    let script = world.write("old.map", "GLIBCXX_3.4.9 {}; GLIBCXX_3.4.30 { global: a; };");
    let script = format!("-Wl,--version-script={}", script.display());
    world.library("lib/libcxx.so.6", older, &[soname, &script]);
    world
}

#[test]
fn missing_symbol_version_is_reported() {
    let world = versioned("void b(void); int which(void) { b(); return 3; }", "void a(void) {}");
    let elf = world.elf("ext.so");
    let missing = &elf.missing_versions[0];
    assert_eq!(missing.version, "GLIBCXX_3.4.32");
    assert_eq!(
        missing.newest.as_deref(),
        Some("GLIBCXX_3.4.30"),
        "numbers, not strings, are compared"
    );
    assert_eq!(missing.path, world.site("lib/libcxx.so.6").to_str().unwrap());
    let said = world.open(&["ext.so"]).remove(0);
    assert!(said.contains("version `GLIBCXX_3.4.32' not found (required by "), "{said}");
}

#[test]
fn existing_symbol_version_is_found() {
    let world = versioned("void a(void); int which(void) { a(); return 3; }", "void a(void) {}");
    let elf = world.elf("ext.so");
    assert_eq!((elf.missing_versions.len(), elf.missing_symbols_total), (0, 0), "{elf:?}");
    assert_eq!(world.open(&["ext.so"]), ["opened 3"]);
}

/// An extension that needs libdep.so.1, which is next to it (2) and on LD_LIBRARY_PATH (1).
fn two_copies(flag: &str) -> World {
    let world = World::new().with_ld_library_path("cuda/lib64");
    let source = |number: u32| format!("int dep(void) {{ return {number}; }}");
    let soname = "-Wl,-soname,libdep.so.1";
    world.library("deps/libdep.so.1", &source(2), &[soname]);
    world.write("cuda/lib64/empty", "");
    world.compile("cuda/lib64/libdep.so.1", &source(1), &[soname], true);
    world.library(
        "ext.so",
        "int dep(void); int which(void) { return dep(); }",
        &["site:deps/libdep.so.1", "-Wl,-rpath,$ORIGIN/deps", flag],
    );
    world
}

#[test]
fn ld_library_path_shadows_a_runpath() {
    let world = two_copies("-Wl,--enable-new-dtags");
    let needed = world.elf("ext.so").needed.remove(0);
    assert_eq!(needed.found_by, Some(FoundBy::LdLibraryPath));
    assert_eq!(needed.path.as_deref(), world.path("cuda/lib64/libdep.so.1").to_str());
    assert_eq!(needed.other.as_deref(), world.site("deps/libdep.so.1").to_str());
    assert_eq!(world.open(&["ext.so"]), ["opened 1"]);
}

#[test]
fn rpath_precedes_ld_library_path() {
    let world = two_copies("-Wl,--disable-new-dtags");
    let needed = world.elf("ext.so").needed.remove(0);
    assert_eq!((needed.found_by, needed.other), (Some(FoundBy::Rpath), None));
    assert_eq!(needed.path.as_deref(), world.site("deps/libdep.so.1").to_str());
    assert_eq!(world.open(&["ext.so"]), ["opened 2"]);
}

#[test]
fn missing_library_and_one_in_another_folder_are_distinguished() {
    let world = World::new();
    let dep = "int dep(void) { return 2; }";
    world.library("nvidia/lib/libcudart.so.12", dep, &["-Wl,-soname,libcudart.so.12"]);
    world.library("gone.so", dep, &["-Wl,-soname,libgone.so.13"]);
    world.library(
        "ext.so",
        "int dep(void); int which(void) { return dep(); }",
        &["-Wl,--no-as-needed", "site:nvidia/lib/libcudart.so.12", "site:gone.so"],
    );
    std::fs::remove_file(world.site("gone.so")).unwrap();
    let elf = world.elf("ext.so");
    assert_eq!(
        elf.needed.iter().map(|needed| needed.path.clone()).collect::<Vec<_>>(),
        [None, None]
    );
    assert_eq!(elf.needed[0].other.as_deref(), world.site("nvidia/lib/libcudart.so.12").to_str());
    assert_eq!(elf.needed[1].other, None);
    let said = world.open(&["ext.so"]).remove(0);
    assert_eq!(said, "libcudart.so.12: cannot open shared object file: No such file or directory");
}

#[test]
fn second_read_uses_the_cache_and_detects_changes() {
    let world = torch_and_extension(OLD, NEW);
    let cache = world.path("cache/native");
    let first = world.env_cached(Some(cache.clone()));
    let written = std::fs::read(&cache).unwrap();
    assert_eq!(world.env_cached(Some(cache.clone())), first);
    assert_eq!(std::fs::read(&cache).unwrap(), written, "nothing new, nothing written");

    // The libraries are not read again: the cache is trusted as long as they are unchanged.
    let text = String::from_utf8(written.clone()).unwrap();
    let (_, body) = text.split_once('\n').unwrap();
    let body = body.replace(OLD, "_ZN3c105ErrorC2ENS_14SourceLocationESx");
    std::fs::write(
        &cache,
        [super::super::cache::header(body.as_bytes()).as_bytes(), body.as_bytes()].concat(),
    )
    .unwrap();
    let told = of(&world.env_cached(Some(cache.clone())), &world.site("flash.so"));
    assert_eq!(told.missing_symbols[0].instead[0].symbol, "_ZN3c105ErrorC2ENS_14SourceLocationESx");

    // Another libc10: the extension itself is unchanged, its symbols are not.
    let export = format!("void f(void) __asm__(\"{NEW}\"); void f(void) {{}}");
    world.library("torch/lib/libc10.so", &export, &["-Wl,-soname,libc10.so"]);
    assert_eq!(
        of(&world.env_cached(Some(cache.clone())), &world.site("flash.so")).missing_symbols,
        []
    );

    // Damaged cache files are ignored and replaced.
    for bytes in [&written[..written.len() / 2], b"", b"firstlight native cache 2\n{}", &[0xff; 64]]
    {
        std::fs::write(&cache, bytes).unwrap();
        let env = world.env_cached(Some(cache.clone()));
        assert_eq!(of(&env, &world.site("flash.so")).missing_symbols, []);
        assert!(std::fs::read(&cache).unwrap().len() > 500);
    }
    let mut altered = written;
    let at = altered.len() - 10;
    altered[at] ^= 1;
    assert!(super::super::cache::parse::<serde_json::Value>(&altered).is_none());
}

#[test]
fn release_and_targets_of_a_ptxas() {
    let world = World::new();
    let source =
        |words: &str| format!("#include <stdio.h>\nint main(void) {{ puts(\"{words}\"); }}");
    let folder = "lib/python3.12/site-packages/triton/backends/nvidia/bin";
    let words = "C, Cuda compilation tools, release 12.8, V12.8.93\\0compute_90\\0lto_compute_90a\\0compute_100f\\0\
                 sm_70\\0compute_\\0compute_90b\\0compute_80:";
    world.compile(&format!("{folder}/ptxas"), &source(words), &[], false);
    world.compile(&format!("{folder}/ptxas-blackwell"), &source("release 13.1"), &[], false);
    world.write(&format!("{folder}/ptxas-torn"), b"\x7fELF");
    let ptxas = world.env().ptxas;
    assert_eq!(ptxas.len(), 1, "{ptxas:?}");
    assert_eq!(ptxas[0].release, "12.8");
    assert_eq!(ptxas[0].targets, ["100f", "90", "90a"]);
    assert_eq!(ptxas[0].source, world.path(folder).join("ptxas").display().to_string());
}

#[test]
fn runpath_disables_the_rpath_of_the_loader() {
    let build = |dtags: &str| {
        let world = World::new();
        for (folder, number) in [("one", 1), ("two", 2)] {
            let source = format!("int dep(void) {{ return {number}; }}");
            world.library(&format!("{folder}/libdep.so"), &source, &["-Wl,-soname,libdep.so"]);
        }
        let middle = "int dep(void); int middle(void) { return dep(); }";
        let arguments =
            ["site:two/libdep.so", "-Wl,-soname,libmiddle.so", "-Wl,-rpath,$ORIGIN/two", dtags];
        world.library("libmiddle.so", middle, &arguments);
        let outer = "int middle(void); int which(void) { return middle(); }";
        let path = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/one:$ORIGIN";
        world.library("outer.so", outer, &["site:libmiddle.so", path]);
        world
    };
    // The effect of the outer file's RPATH on the middle one is not visible in missing symbols, so the process is
    // inspected.
    let which = |world: &World| {
        let source = crate::Source::live().without_vars();
        let known = super::super::CachedFiles::default();
        let store = super::super::Store::new(&source, &known);
        let search = super::super::Search::of(&source);
        let mut process = super::super::Process::default();
        process.open(&store, &search, &world.path("bin/python")).unwrap();
        let root = process.open(&store, &search, &world.site("outer.so")).unwrap();
        let scope = process.scope(root);
        let paths = scope.iter().map(|index| process.maps()[*index].lib.path.clone());
        paths.filter(|path| path.ends_with("libdep.so")).collect::<Vec<_>>()
    };
    let runpath = build("-Wl,--enable-new-dtags");
    assert_eq!(which(&runpath), [runpath.site("two/libdep.so")]);
    assert_eq!(runpath.open(&["outer.so"]), ["opened 2"]);
    // Its own RPATH still precedes its loader's.
    let rpath = build("-Wl,--disable-new-dtags");
    assert_eq!(which(&rpath), [rpath.site("two/libdep.so")]);
    assert_eq!(rpath.open(&["outer.so"]), ["opened 2"]);
}

/// A version can exist while the symbol of that version is elsewhere.
#[test]
fn symbols_of_other_versions_differ() {
    let world = World::new();
    let script =
        |text: &str| format!("-Wl,--version-script={}", world.write("map", text).display());
    let soname = "-Wl,-soname,libv.so.1";
    let source = "void a(void) {} void b(void) {}";
    world.library("lib/libv.so.1", source, &[soname, &script("V_1 { global: a; b; };")]);
    let extension = "void b(void); int which(void) { b(); return 1; }";
    world.library("ext.so", extension, &["site:lib/libv.so.1", "-Wl,-rpath,$ORIGIN/lib"]);
    assert_eq!(world.elf("ext.so").missing_symbols_total, 0);
    assert_eq!(world.open(&["ext.so"]), ["opened 1"]);
    world.library(
        "lib/libv.so.1",
        source,
        &[soname, &script("V_1 { global: a; }; V_2 { global: b; };")],
    );
    let elf = world.elf("ext.so");
    assert_eq!(elf.missing_versions, []);
    let missing = &elf.missing_symbols[0];
    assert_eq!((missing.symbol.as_str(), missing.version.as_deref()), ("b", Some("V_1")));
    assert_eq!(missing.library.as_deref(), Some("libv.so.1"));
    let said = world.open(&["ext.so"]).remove(0);
    assert!(said.ends_with("undefined symbol: b, version V_1"), "{said}");
}

/// A library next to the plain one for the processor's level, and one for a level that no processor has.
#[cfg(target_arch = "x86_64")]
#[test]
fn build_for_this_processor_comes_first() {
    let world = two_copies("-Wl,--enable-new-dtags");
    let build = |level: &str, number: u32| {
        let folder = format!("deps/glibc-hwcaps/{level}");
        world.write(&format!("lib/python3.12/site-packages/{folder}/empty"), "");
        let source = format!("int dep(void) {{ return {number}; }}");
        let library = format!("{folder}/libdep.so.1");
        world.library(&library, &source, &["-Wl,-soname,libdep.so.1"]);
        library
    };
    build("x86-64-v9", 9);
    // Without the copy on LD_LIBRARY_PATH, which precedes RUNPATH.
    std::fs::remove_file(world.path("cuda/lib64/libdep.so.1")).unwrap();
    let chosen = |world: &World| world.elf("ext.so").needed[0].path.clone().unwrap();
    assert_eq!(world.open(&["ext.so"]), ["opened 2"]);
    assert_eq!(chosen(&world), world.site("deps/libdep.so.1").to_str().unwrap());
    let special = build("x86-64-v2", 4);
    // Every x86-64 processor of the last fifteen years has this level.
    assert_eq!(world.open(&["ext.so"]), ["opened 4"]);
    assert_eq!(chosen(&world), world.site(&special).to_str().unwrap());
}

#[test]
fn library_for_another_architecture_is_not_resolved() {
    let world = World::new();
    let script = world.write("libc.map", "GLIBC_2.99 { global: newer; };");
    let script = format!("-Wl,--version-script={}", script.display());
    let gone = "gone/libc.so.6";
    world.library(gone, "void newer(void) {}", &["-Wl,-soname,libc.so.6", &script]);
    let source = "void newer(void); int which(void) { newer(); return 1; }";
    let file = world.library("ext.so", source, &["site:gone/libc.so.6"]);
    std::fs::remove_dir_all(world.site("gone")).unwrap();
    // The program has loaded this system's C library, which has no such version.
    assert_eq!(world.elf("ext.so").missing_versions.len(), 1);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    std::fs::write(&file, bytes).unwrap();
    let elf = world.elf("ext.so");
    assert_eq!((elf.missing_versions.len(), &elf.needed[0].path), (0, &None), "{elf:?}");
}

#[test]
fn damaged_library_is_reported_and_its_dependents_are_not() {
    let build = || {
        let world = World::new();
        world.library("lib/libown.so", "void own(void) {}", &["-Wl,-soname,libown.so"]);
        let source =
            "void own(void); int which(void) { own(); return 3; } void PyInit_ext(void) {}";
        world.library("ext.so", source, &["site:lib/libown.so", "-Wl,-rpath,$ORIGIN/lib"]);
        world
    };
    let check = |damage: &dyn Fn(&mut Vec<u8>), words: &str| {
        let world = build();
        let path = world.site("lib/libown.so");
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let env = world.env();
        let file = env.native_files.iter().find(|file| file.name() == "libown.so").unwrap();
        assert!(file.damage.as_ref().is_some_and(|it| it.contains(words)), "{words}: {file:?}");
        let ext = of(&env, &world.site("ext.so"));
        assert_eq!((ext.missing_symbols_total, ext.module), (0, Some(true)), "{ext:?}");
        assert!(ext.needed.iter().all(|needed| needed.path.is_some()), "{ext:?}");
    };
    check(&|bytes| bytes.clear(), "is empty");
    check(&|bytes| bytes.truncate(10), "first header");
    check(&|bytes| bytes.truncate(40), "no whole ELF header");
    check(&|bytes| bytes.truncate(bytes.len() / 2), "is cut off: it has");
    check(&|bytes| bytes.fill(0), "zero bytes");
    check(&|bytes| bytes[..4].copy_from_slice(b"\x7fELV"), "does not begin");
    check(&|bytes| *bytes = b"<!DOCTYPE html>".to_vec(), "web page");
    let world = build();
    assert_eq!(world.open(&["ext.so"]), ["opened 3"]);
    assert!(world.env().native_files.iter().all(|file| file.damage.is_none()));
}

#[test]
fn executable_stack_is_read_from_the_program_header() {
    let world = World::new();
    let source = "void PyInit_a(void) {} void PyInit_b(void) {}";
    world.library("a.so", source, &["-Wl,-z,execstack"]);
    world.library("b.so", source, &["-Wl,-z,noexecstack"]);
    assert!(world.elf("a.so").executable_stack);
    assert!(!world.elf("b.so").executable_stack);
}

#[test]
fn library_is_loaded_by_dependents_or_by_python_code() {
    let world = World::new();
    let broken = "void gone(void); int which(void) { gone(); return 1; }";
    let libraries = ["own/liba.so", "own/libb.so", "own/libc2.so", "own/_C.so"];
    let functions = [
        "own/libearly.so",
        "own/liblazy.so",
        "own/libtried.so",
        "own/libagain.so",
        "own/libkept.so",
        "own/libforeign.so",
        "own/libregistered.so",
    ];
    for name in libraries.into_iter().chain(functions) {
        world.library(name, broken, &[]);
    }
    world.library(
        "own/_needs.so",
        "void PyInit__needs(void) {}",
        &["-Wl,--no-as-needed", "site:own/libb.so", "-Wl,-rpath,$ORIGIN"],
    );
    // One build for each MPI, of which the package's own finder selects one (mpi4py): `import own.MPI` finds neither.
    for name in ["own/MPI.mpich.abi3.so", "own/MPI.openmpi.cpython-312-x86_64-linux-gnu.so"] {
        world.library(name, "void gone(void); void PyInit_MPI(void) { gone(); }", &[]);
    }
    world.library("own/jitify.so", "void gone(void); void PyInit_jitify(void) { gone(); }", &[]);
    let site = |path: &str| format!("lib/python3.12/site-packages/own/{path}");
    world.write(&site("__init__.py"), "__all__ = ['MPI']\nfrom . import _loads, tries\n");
    world.write(
        &site("_loads.py"),
        "load('liba')\nfrom own import _C\ntry:\n    from . import late\nexcept Exception: ...\n\
         def first(\n    a\n):\n    load('libearly')\n\ndef _import_sox():\n    load('liblazy')\n\ndef _init_sox():\n    _import_sox()\n\n\
         first(1)\nBACKENDS = ['jitify']\nlazy = Lazy('x', _init_sox)\n",
    );
    world.write(&site("late.py"), "load('libc2')\n");
    world.write(
        &site("tries.py"),
        "def one():\n    load('libtried')\ndef two():\n    load('libagain')\ndef three():\n    load('libkept')\n\n\
         try:\n    with folder():\n        path = one()\n    there = True\nexcept Exception:\n    there = False\n\n\
         try:\n    two()\nexcept OSError as error:\n    say(error)\n    raise\n\n\
         class Gone(Exception): ...\nclass NotBuilt(Exception): ...\n\
         try:\n    three()\nexcept (Gone, NotBuilt) as error:\n    why = error\n\n\
         def four():\n    load('libforeign')\n\n\
         try:\n    four()\nexcept Foreign as error:\n    why = error\n\n\
         def path_of():\n    return join('libregistered')\ndef register():\n    path = path_of()\n    if not path:\n        return\n    try:\n        \
         add('CUDA', path)\n    except Exception as e:\n        warn(f'failed: {path}')\nregister()\n",
    );
    let env = world.env();
    let opened_by = |name: &str| of(&env, &world.site(name)).opened_by;
    let path = |name: &str| Some(world.site(name).display().to_string());
    assert_eq!(opened_by("own/liba.so"), path("own/_loads.py"));
    assert_eq!(opened_by("own/libb.so"), path("own/_needs.so"));
    assert_eq!(opened_by("own/_C.so"), path("own/_loads.py"));
    assert_eq!(opened_by("own/libc2.so"), None);
    // CuPy has the name of its module jitify in the text of an option, and imports it on first use.
    assert_eq!(opened_by("own/jitify.so"), None);
    // torchaudio opens its SoX library in a function that is called on first use of SoX.
    assert_eq!(opened_by("own/libearly.so"), path("own/_loads.py"));
    assert_eq!(opened_by("own/liblazy.so"), None);
    // torchcodec works without FFmpeg's libraries since 0.17: it catches the exception of its function.
    assert_eq!(opened_by("own/libtried.so"), None);
    assert_eq!(opened_by("own/libagain.so"), path("own/tries.py"));
    // onnxruntime searches its CUDA provider, and works without it if it cannot be registered.
    assert_eq!(opened_by("own/libregistered.so"), None);
    // xformers catches its own exceptions, warns, and fails when what is absent is called.
    assert_eq!(opened_by("own/libkept.so"), None);
    assert_eq!(opened_by("own/libforeign.so"), path("own/tries.py"));
    for name in ["own/MPI.mpich.abi3.so", "own/MPI.openmpi.cpython-312-x86_64-linux-gnu.so"] {
        let elf = of(&env, &world.site(name));
        assert_eq!((elf.opened_by, elf.module), (None, Some(false)), "{name}");
    }
}

#[test]
fn module_with_a_handled_import_error_is_optional() {
    let world = World::new();
    let modules =
        ["flagged", "silent", "raised", "called", "unnamed", "initial", "both", "globbed"];
    for name in modules {
        let source = format!("void gone(void); void PyInit_{name}(void) {{ gone(); }}");
        world.library(&format!("own/{name}.so"), &source, &[]);
    }
    let site = |path: &str| format!("lib/python3.12/site-packages/{path}");
    world.write(
        &site("own/__init__.py"),
        "try:\n    from . import initial\nexcept ImportError:\n    pass\n\
         if fits():\n    try:\n        for file in folder.glob('globbed*.so'):\n            load(file)\n    except Exception as e:\n        log(e)\n",
    );
    world.write(
        &site("own/kernels.py"),
        "def deep():\n    try:\n        pass\n    except ImportError:\n        raise\n\n\
         there = False\nif new_enough():\n    try:\n        # a remark\n        from own import (\n            flagged,\n        )\n\n        there = True\n    \
         except (ImportError, OSError):\n        log('no kernels')\n\n\
         try:\n    import own.silent\nexcept ImportError as e:\n    log(e)\n\n\
         try:\n    from . import raised\nexcept ImportError:\n    raised = None\n    raise\n\n\
         try:\n    from . import both\nexcept ImportError:\n    both = None\n\n\
         def call():\n    from own import called\n    from own import both\n",
    );
    world
        .write(&site("own-1.dist-info/METADATA"), "Metadata-Version: 2.1\nName: own\nVersion: 1\n");
    let record: String = modules.iter().map(|name| format!("own/{name}.so,,\n")).collect();
    world.write(&site("own-1.dist-info/RECORD"), &record);
    let env = world.env();
    for name in modules {
        let elf = of(&env, &world.site(&format!("own/{name}.so")));
        let by = match name {
            "flagged" => Some("own/kernels.py"),
            "initial" | "globbed" => Some("own/__init__.py"),
            _ => None,
        };
        let by = by.map(|by| world.site(by).display().to_string());
        assert_eq!((elf.opened_by, elf.optional_in), (None, by), "{name}");
    }
}
