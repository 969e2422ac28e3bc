//! Damaged and hostile files: no panic, no hang, bounded memory.

use super::super::{demangle, elf, symbols};
use super::fatbins::{Image, as_source, container};
use super::world::World;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::OnceLock;

/// A real library with symbols, versions, a search path and GPU code.
fn seed() -> &'static [u8] {
    static SEED: OnceLock<Vec<u8>> = OnceLock::new();
    SEED.get_or_init(|| {
        let world = World::new();
        let script = world.write("a.map", "V_1 { global: a; }; V_2 { global: b; } V_1;");
        let script = format!("-Wl,--version-script={}", script.display());
        let dep = "void a(void) {} void b(void) {}";
        world.library("libdep.so", dep, &["-Wl,-soname,libdep.so", &script]);
        let code =
            as_source(&container(&[Image(2, (1, 7), 80, 0x11, 8), Image(1, (8, 7), 90, 0x11, 8)]));
        let source = format!("void a(void); void b(void); void c(void) {{ a(); b(); }} {code}");
        let arguments = ["site:libdep.so", "-Wl,-rpath,$ORIGIN", "-Wl,-soname,libx.so", &script];
        std::fs::read(world.library("x.so", &source, &arguments)).unwrap()
    })
}

fn read_all(bytes: &[u8]) {
    let object = elf::parse(bytes);
    let symbols = symbols::read(bytes);
    if let Ok(symbols) = symbols {
        for wanted in symbols.undefined().take(1000) {
            symbols.provides(&wanted);
        }
        symbols.beginning_with(b"_ZN", 4);
    }
    drop(object);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_files(changes in vec((any::<Index>(), any::<u64>(), 1usize..=8), 1..12), cut in any::<Option<Index>>()) {
        let mut bytes = seed().to_vec();
        for (at, value, length) in changes {
            let at = at.index(bytes.len());
            let end = (at + length).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(&bytes);
    }

    /// Changes in the headers and the tables after them.
    #[test]
    fn altered_headers(changes in vec((0usize..1200, prop_oneof![Just(0), Just(u64::MAX), Just(1), 0u64..20_000]), 1..6)) {
        let mut bytes = seed().to_vec();
        for (at, value) in changes {
            let at = (at / 8 * 8).min(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        read_all(&bytes);
    }

    #[test]
    fn random_bytes_after_the_magic_never_panic(noise in vec(any::<u8>(), 0..600)) {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.extend(noise);
        read_all(&bytes);
    }

    #[test]
    fn random_bytes_as_gpu_code_never_panic(noise in vec(any::<u8>(), 0..400), start in 0u64..500, size in any::<u64>()) {
        let mut bytes = container(&[Image(2, (1, 7), 80, 0x11, 8)]);
        bytes.extend(noise);
        let mut code = Vec::new();
        let _ = super::super::fatbin::walk(bytes.as_slice(), start, size, &mut code);
        let _ = super::super::fatbin::walk(bytes.as_slice(), 0, bytes.len() as u64, &mut code);
    }

    #[test]
    fn symbols_of_any_spelling(noise in "_Z[NKSTI0-9a-zA-Z_]{0,60}", wild in ".{0,40}") {
        for symbol in [noise, format!("_Z{wild}"), wild] {
            let name = demangle::demangle(&symbol);
            prop_assert!(name.is_none_or(|name| name.len() <= 403));
            let _ = demangle::overloads(&symbol);
        }
    }
}

#[test]
fn unmodified_file_is_parsed() {
    let object = elf::parse(seed()).unwrap();
    assert_eq!(object.problems, Vec::<String>::new());
    assert_eq!(object.soname.as_deref(), Some("libx.so"));
    assert_eq!(object.requires[0].versions.len(), 2);
    let symbols = symbols::read(seed()).unwrap();
    assert_eq!(symbols.undefined().count(), 2);
}

/// The loader reads no section headers, and a file can lack them.
#[test]
fn file_without_section_headers_is_read() {
    let mut bytes = seed().to_vec();
    for at in [40..48, 58..64] {
        bytes[at].fill(0);
    }
    let (whole, bare) = (symbols::read(seed()).unwrap(), symbols::read(bytes.as_slice()).unwrap());
    assert_eq!(bare.undefined().collect::<Vec<_>>(), whole.undefined().collect::<Vec<_>>());
    assert_eq!(bare.beginning_with(b"", 100), whole.beginning_with(b"", 100));
    assert_eq!(elf::parse(bytes.as_slice()).unwrap().needed, ["libdep.so"]);
}

/// The file truncated to every length.
#[test]
fn truncated_files_never_panic() {
    let bytes = seed();
    for length in (0..bytes.len()).step_by(7) {
        read_all(&bytes[..length]);
    }
}
