//! Parses one ELF file through its program headers, as the dynamic loader does.

use facts::CompactSort;
use memchr::memmem;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, SectionHeader64};
use object::endian::LittleEndian as LE;
use object::read::ReadRef;
use object::read::elf::FileHeader as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The cached data of one ELF file, without its symbols.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Object {
    /// `e_machine`.
    pub(crate) machine: u16,
    /// A 64-bit little-endian file; others are only identified.
    pub(crate) readable: bool,
    pub(crate) soname: Option<String>,
    pub(crate) needed: Vec<String>,
    pub(crate) rpath: Option<String>,
    pub(crate) runpath: Option<String>,
    /// DF_1_NODEFLIB: the cache and the default folders are not searched for its needed libraries.
    pub(crate) no_default: bool,
    pub(crate) requires: Vec<Requires>,
    /// Symbol versions it defines.
    pub(crate) defines: Vec<String>,
    /// The CUDA release in a program of the toolkit: `12.8` of a ptxas.
    pub(crate) cuda_release: Option<String>,
    /// The architectures that a ptxas compiles for: `90`, `90a`.
    pub(crate) ptxas_targets: Vec<String>,
    /// `facts::GpuCode`.
    pub(crate) gpu_code: Vec<facts::GpuCode>,
    pub(crate) numpy: Option<facts::NumpyApi>,
    /// PT_GNU_STACK has PF_X.
    pub(crate) executable_stack: bool,
    /// Why the loader cannot map it.
    pub(crate) damage: Option<String>,
    pub(crate) problems: Vec<String>,
}

impl Object {
    /// Whether it has the magic number of ELF.
    pub(crate) fn is_elf(&self) -> bool {
        self.machine != 0
    }

    /// Whether the loader's search stops at it on this processor: it skips files for other processors, and takes the
    /// first other file of the name, even a damaged one.
    pub(crate) fn ends_search(&self, machine: u16) -> bool {
        match self.is_elf() {
            true => self.machine == machine && (self.readable || self.damage.is_some()),
            false => self.damage.is_some(),
        }
    }
}

/// The symbol versions that a file requires of one library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requires {
    pub(crate) library: String,
    /// Required versions, without weak ones.
    pub(crate) versions: Vec<String>,
}

/// Maximum number of table entries, against hostile or damaged files; the largest real libraries have some hundreds.
const MAX_ENTRIES: usize = 20_000;
/// Maximum length of a name. The loader has no limit; C++ symbols reach 5,000 characters, file names do not.
const MAX_NAME: u64 = 4096;

/// Whether these are the first bytes of an ELF file.
pub(crate) fn is_elf(magic: &[u8]) -> bool {
    magic.starts_with(&elf::ELFMAG)
}

/// Parses a file. `None` if it is not an ELF file; problems are in [`Object::problems`], and in [`Object::damage`] if
/// the loader refuses it.
pub(crate) fn parse<'data, R: ReadRef<'data>>(data: R) -> Option<Object> {
    let ident = match data.read_bytes_at(0, 20) {
        Ok(ident) if is_elf(ident) => ident,
        // A file that was never a library; damaged ones are reported under their own name.
        _ => {
            let damage = super::damage::of_another_kind(data)?;
            return Some(Object { damage: Some(damage), ..Object::default() });
        }
    };
    let machine = match ident[5] {
        2 => u16::from_be_bytes([ident[18], ident[19]]),
        _ => u16::from_le_bytes([ident[18], ident[19]]),
    };
    let mut object = Object { machine, ..Object::default() };
    let file = match File::open(data) {
        Ok(file) => file,
        Err(problem) => {
            object.damage = problem.map(str::to_owned);
            object.problems.extend(object.damage.clone());
            return Some(object);
        }
    };
    object.readable = true;
    object.damage = file.damage();
    if let Err(problem) = file.dynamic_facts(&mut object) {
        object.problems.push(problem.to_owned());
    }
    for (offset, size) in file.sections_named(&[b".nv_fatbin", b"__nv_relfatbin"]) {
        match super::fatbin::walk(data, offset, size, &mut object.gpu_code) {
            Ok(()) => {}
            Err(problem) => object.problems.push(problem),
        }
    }
    if let Some((release, targets)) =
        Some(&file).filter(|it| it.is_program()).and_then(File::compiler)
    {
        (object.cuda_release, object.ptxas_targets) = (Some(release), targets);
    }
    object.numpy = file.numpy();
    object.executable_stack = file.has_executable_stack();
    object.gpu_code.compact_sort_by(|a, b| a.images.cmp(&b.images));
    Some(object)
}

/// A 64-bit little-endian ELF file with its program headers read.
pub(crate) struct File<'data, R: ReadRef<'data>> {
    pub(crate) data: R,
    pub(crate) length: u64,
    header: &'data FileHeader64<LE>,
    segments: &'data [ProgramHeader64<LE>],
}

/// The values of a dynamic section used here.
#[derive(Debug, Default)]
pub(crate) struct Dynamic {
    needed: Vec<u64>,
    soname: Option<u64>,
    rpath: Option<u64>,
    runpath: Option<u64>,
    flags_1: u64,
    pub(crate) strtab: u64,
    pub(crate) strtab_size: u64,
    pub(crate) symtab: Option<u64>,
    pub(crate) gnu_hash: Option<u64>,
    pub(crate) versym: Option<u64>,
    pub(crate) verneed: Option<(u64, u64)>,
    pub(crate) verdef: Option<(u64, u64)>,
}

/// One entry of `.gnu.version_r` or `.gnu.version_d`.
#[derive(Debug)]
pub(crate) struct Version {
    /// The index by which symbols refer to it.
    pub(crate) index: u16,
    pub(crate) name: String,
    /// The required library; `None` for a version that the file defines.
    pub(crate) library: Option<String>,
    pub(crate) weak: bool,
}

impl<'data, R: ReadRef<'data>> File<'data, R> {
    /// Parses the headers. The error is empty if the file is valid but of an unsupported kind.
    pub(crate) fn open(data: R) -> Result<Self, Option<&'static str>> {
        let ident = data.read_bytes_at(0, 16).map_err(|()| Some("has no whole ELF header"))?;
        if ident[4] != elf::ELFCLASS64.0 || ident[5] != elf::ELFDATA2LSB.0 {
            return Err(None);
        }
        let length = data.len().map_err(|()| Some("has no size"))?;
        let header =
            FileHeader64::<LE>::parse(data).map_err(|_| Some("has no whole ELF header"))?;
        let segments =
            header.program_headers(LE, data).map_err(|_| Some("has torn program headers"))?;
        Ok(Self { data, length, header, segments })
    }

    /// The file offset of an address, and the remaining bytes of its segment.
    pub(crate) fn offset_of(&self, address: u64) -> Option<(u64, u64)> {
        self.segments.iter().filter(|s| s.p_type.get(LE) == elf::PT_LOAD).find_map(|segment| {
            let into = address.checked_sub(segment.p_vaddr.get(LE))?;
            let rest = segment.p_filesz.get(LE).checked_sub(into).filter(|rest| *rest > 0)?;
            Some((segment.p_offset.get(LE).checked_add(into)?, rest))
        })
    }

    /// The dynamic section; `None` for a file without one (static programs, debug files).
    pub(crate) fn dynamic(&self) -> Result<Option<Dynamic>, &'static str> {
        let Some(segment) = self.segments.iter().find(|s| s.p_type.get(LE) == elf::PT_DYNAMIC)
        else {
            return Ok(None);
        };
        let count = (segment.p_filesz.get(LE) / 16).min(MAX_ENTRIES as u64) as usize;
        let entries: &[Dyn64<LE>] = self
            .data
            .read_slice_at(segment.p_offset.get(LE), count)
            .map_err(|()| "has a dynamic section outside the file")?;
        let mut dynamic = Dynamic::default();
        let (mut verneed, mut verneed_count, mut verdef, mut verdef_count) = (None, 0, None, 0);
        for entry in entries {
            let value = entry.d_val.get(LE);
            match entry.d_tag.get(LE) {
                elf::DT_NULL => break,
                elf::DT_NEEDED => dynamic.needed.push(value),
                elf::DT_SONAME => dynamic.soname = Some(value),
                elf::DT_RPATH => dynamic.rpath = Some(value),
                elf::DT_RUNPATH => dynamic.runpath = Some(value),
                elf::DT_FLAGS_1 => dynamic.flags_1 = value,
                elf::DT_STRTAB => dynamic.strtab = value,
                elf::DT_STRSZ => dynamic.strtab_size = value,
                elf::DT_SYMTAB => dynamic.symtab = Some(value),
                elf::DT_GNU_HASH => dynamic.gnu_hash = Some(value),
                elf::DT_VERSYM => dynamic.versym = Some(value),
                elf::DT_VERNEED => verneed = Some(value),
                elf::DT_VERNEEDNUM => verneed_count = value,
                elf::DT_VERDEF => verdef = Some(value),
                elf::DT_VERDEFNUM => verdef_count = value,
                _ => {}
            }
        }
        dynamic.verneed = verneed.map(|address| (address, verneed_count));
        dynamic.verdef = verdef.map(|address| (address, verdef_count));
        Ok(Some(dynamic))
    }

    fn dynamic_facts(&self, object: &mut Object) -> Result<(), &'static str> {
        let Some(dynamic) = self.dynamic()? else { return Ok(()) };
        let string = |at: Option<u64>| at.and_then(|at| self.string(&dynamic, at));
        object.soname = string(dynamic.soname);
        object.rpath = string(dynamic.rpath);
        object.runpath = string(dynamic.runpath);
        object.needed = dynamic.needed.iter().filter_map(|at| string(Some(*at))).collect();
        object.no_default = dynamic.flags_1 & elf::DF_1_NODEFLIB.0 != 0;
        for version in self.required_versions(&dynamic)? {
            let Some(library) = version.library.filter(|_| !version.weak) else { continue };
            match object.requires.iter_mut().find(|entry| entry.library == library) {
                Some(entry) => entry.versions.push(version.name),
                None => object.requires.push(Requires { library, versions: vec![version.name] }),
            }
        }
        object.defines =
            self.defined_versions(&dynamic)?.into_iter().map(|version| version.name).collect();
        if object.needed.len() != dynamic.needed.len() {
            return Err("has DT_NEEDED entries outside its string table");
        }
        Ok(())
    }

    /// A string of the dynamic string table.
    pub(crate) fn string(&self, dynamic: &Dynamic, at: u64) -> Option<String> {
        let (start, rest) = self.offset_of(dynamic.strtab)?;
        let left = dynamic.strtab_size.min(rest).checked_sub(at)?.min(MAX_NAME);
        let from = start.checked_add(at)?;
        let end = from.checked_add(left)?.min(self.length);
        let bytes = self.data.read_bytes_at_until(from..end, 0).ok()?;
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }

    fn at<T: object::Pod>(&self, offset: u64) -> Result<&'data T, &'static str> {
        self.data.read_at(offset).map_err(|()| "has symbol versions outside the file")
    }

    /// `.gnu.version_r`: required versions.
    pub(crate) fn required_versions(
        &self,
        dynamic: &Dynamic,
    ) -> Result<Vec<Version>, &'static str> {
        let mut versions = Vec::new();
        let Some((address, count)) = dynamic.verneed else { return Ok(versions) };
        let mut at = self.offset_of(address).ok_or("has symbol versions outside the file")?.0;
        // A common limit for both loops: entries of a damaged table can form cycles.
        let mut steps = MAX_ENTRIES;
        for _ in 0..count.min(MAX_ENTRIES as u64) {
            let need: &elf::Verneed<LE> = self.at(at)?;
            let library = self.string(dynamic, need.vn_file.get(LE).into());
            let mut aux_at = at.saturating_add(need.vn_aux.get(LE).into());
            for _ in 0..need.vn_cnt.get(LE) {
                let aux: &elf::Vernaux<LE> = self.at(aux_at)?;
                if let Some(name) = self.string(dynamic, aux.vna_name.get(LE).into()) {
                    versions.push(Version {
                        index: aux.vna_other.get(LE).0 & 0x7fff,
                        name,
                        library: library.clone(),
                        weak: aux.vna_flags.get(LE).0 & elf::VER_FLG_WEAK.0 != 0,
                    });
                }
                steps = steps.saturating_sub(1);
                if aux.vna_next.get(LE) == 0 || steps == 0 {
                    break;
                }
                aux_at = aux_at.saturating_add(aux.vna_next.get(LE).into());
            }
            if need.vn_next.get(LE) == 0 || steps == 0 {
                break;
            }
            at = at.saturating_add(need.vn_next.get(LE).into());
        }
        Ok(versions)
    }

    /// `.gnu.version_d`: defined versions, without the file's own name.
    pub(crate) fn defined_versions(&self, dynamic: &Dynamic) -> Result<Vec<Version>, &'static str> {
        let mut versions = Vec::new();
        let Some((address, count)) = dynamic.verdef else { return Ok(versions) };
        let mut at = self.offset_of(address).ok_or("has symbol versions outside the file")?.0;
        for _ in 0..count.min(MAX_ENTRIES as u64) {
            let def: &elf::Verdef<LE> = self.at(at)?;
            let aux: &elf::Verdaux<LE> = self.at(at.saturating_add(def.vd_aux.get(LE).into()))?;
            let base = def.vd_flags.get(LE).0 & elf::VER_FLG_BASE.0 != 0;
            if let Some(name) = self.string(dynamic, aux.vda_name.get(LE).into())
                && !base
            {
                let index = def.vd_ndx.get(LE).0 & 0x7fff;
                versions.push(Version { index, name, library: None, weak: false });
            }
            if def.vd_next.get(LE) == 0 {
                break;
            }
            at = at.saturating_add(def.vd_next.get(LE).into());
        }
        Ok(versions)
    }

    /// Signs that the file is not as its linker wrote it.
    fn damage(&self) -> Option<String> {
        let loads = self
            .segments
            .iter()
            .filter(|segment| matches!(segment.p_type.get(LE), elf::PT_LOAD | elf::PT_DYNAMIC));
        let segments = loads
            .filter_map(|s| s.p_offset.get(LE).checked_add(s.p_filesz.get(LE)))
            .max()
            .unwrap_or(0);
        let table = u64::from(self.header.e_shnum.get(LE)) * 64;
        // Without section headers the field is 0.
        let sections = match self.header.e_shoff.get(LE) {
            0 => 0,
            offset => offset.saturating_add(table),
        };
        let end = segments.max(sections);
        if end > self.length {
            return Some(format!(
                "is cut off: it has {} bytes, and its headers describe {end}",
                self.length
            ));
        }
        let zeros = |what: &str| Some(format!("is damaged: {what} is overwritten with zero bytes"));
        let dynamic = match self.dynamic() {
            Ok(Some(dynamic)) => dynamic,
            Ok(None) | Err(_) => return None,
        };
        if dynamic.symtab.is_none() && dynamic.strtab == 0 {
            return zeros("its dynamic section");
        }
        let (offset, rest) = self.offset_of(dynamic.strtab)?;
        // The first string is the empty one; no linker writes a second empty string.
        let names = self.data.read_bytes_at(offset, dynamic.strtab_size.min(rest).min(64)).ok()?;
        if names.len() > 16 && names.iter().all(|byte| *byte == 0) {
            return zeros("its table of names");
        }
        None
    }

    /// The constants that NumPy's headers compile into every user of its C API.
    fn numpy(&self) -> Option<facts::NumpyApi> {
        /// The constants of libtorch_python.so have 6 MB; larger ones are tables.
        const LARGEST: u64 = 48 << 20;
        let (offset, size) =
            self.sections_named(&[b".rodata"]).into_iter().find(|(_, size)| *size <= LARGEST)?;
        let constants = self.data.read_bytes_at(offset, size).ok()?;
        super::numpy::read(constants)
    }

    /// Whether its program headers request an executable stack.
    fn has_executable_stack(&self) -> bool {
        let mut stack = self.segments.iter().filter(|s| s.p_type.get(LE) == elf::PT_GNU_STACK);
        stack.any(|segment| segment.p_flags.get(LE).0 & elf::PF_X.0 != 0)
    }

    /// Whether it is a program instead of a library: programs name their loader.
    fn is_program(&self) -> bool {
        self.segments.iter().any(|segment| segment.p_type.get(LE) == elf::PT_INTERP)
    }

    /// The release in the version text of NVIDIA's compilers, and the architectures that they support.
    fn compiler(&self) -> Option<(String, Vec<String>)> {
        const WORDS: &[u8] = b"Cuda compilation tools, release ";
        /// The constants of a ptxas have 3 MB.
        const LARGEST: u64 = 32 << 20;
        let (offset, size) =
            self.sections_named(&[b".rodata"]).into_iter().find(|(_, size)| *size <= LARGEST)?;
        let constants = self.data.read_bytes_at(offset, size).ok()?;
        let number = &constants[memmem::find(constants, WORDS)? + WORDS.len()..];
        let end =
            number.iter().take(8).position(|byte| !(byte.is_ascii_digit() || *byte == b'.'))?;
        let release = std::str::from_utf8(&number[..end]).ok().filter(|text| !text.is_empty())?;
        Some((release.to_owned(), targets(constants)))
    }

    fn sections(&self) -> &'data [SectionHeader64<LE>] {
        // Section headers can be stripped from a valid library: facts that only they have are then unknown.
        self.header.section_headers(LE, self.data).unwrap_or_default()
    }

    /// Offset and size of the sections with one of these names.
    fn sections_named(&self, names: &[&[u8]]) -> Vec<(u64, u64)> {
        let sections = self.sections();
        let Ok(index) = self.header.shstrndx(LE, self.data) else { return Vec::new() };
        let Some(strings) = sections.get(index as usize) else { return Vec::new() };
        let (start, size) = (strings.sh_offset.get(LE), strings.sh_size.get(LE));
        let Ok(strings) = self.data.read_bytes_at(start, size.min(1 << 20)) else {
            return Vec::new();
        };
        let named = |section: &&SectionHeader64<LE>| {
            let rest = strings.get(section.sh_name.get(LE) as usize..).unwrap_or_default();
            names
                .iter()
                .any(|name| rest.strip_prefix(*name).is_some_and(|after| after.first() == Some(&0)))
        };
        sections
            .iter()
            .filter(|section| section.sh_type.get(LE) != elf::SHT_NOBITS)
            .filter(named)
            .take(16)
            .map(|section| (section.sh_offset.get(LE), section.sh_size.get(LE)))
            .collect()
    }

    /// Number of dynamic symbols, from the section headers; `None` if those are stripped.
    pub(crate) fn symbol_count(&self) -> Option<u64> {
        let section = self.sections().iter().find(|s| s.sh_type.get(LE) == elf::SHT_DYNSYM)?;
        Some(section.sh_size.get(LE) / 24)
    }
}

/// The values of ptxas' option --gpu-name, from the names of their virtual architectures: other strings with `sm_` are
/// architectures that it no longer supports. Equal to the list of `--help` of ptxas 11.8 to 13.4.
fn targets(constants: &[u8]) -> Vec<String> {
    const WORD: &[u8] = b"compute_";
    let found = memmem::find_iter(constants, WORD).filter_map(|at| {
        let rest = &constants[at + WORD.len()..];
        let name = &rest[..rest.iter().take(8).position(|byte| *byte == 0)?];
        let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_target = digits >= 2 && matches!(&name[digits..], b"" | b"a" | b"f");
        is_target.then(|| String::from_utf8_lossy(name).into_owned())
    });
    let targets: BTreeSet<String> = found.collect();
    targets.into_iter().collect()
}

/// The name of an ELF machine in `uname -m`.
pub(crate) fn machine_name(machine: u16) -> String {
    match elf::Machine(machine) {
        elf::EM_X86_64 => "x86_64".to_owned(),
        elf::EM_AARCH64 => "aarch64".to_owned(),
        elf::EM_386 => "i686".to_owned(),
        elf::EM_ARM => "arm".to_owned(),
        elf::EM_PPC64 => "ppc64le".to_owned(),
        elf::EM_RISCV => "riscv64".to_owned(),
        elf::EM_S390 => "s390x".to_owned(),
        elf::Machine(other) => format!("elf-machine-{other}"),
    }
}
