//! The dynamic symbols of one file, with the loader's lookup.

use super::elf::{Dynamic, File};
use memchr::memmem;
use object::elf::{self, Sym64};
use object::endian::LittleEndian as LE;
use object::pod;
use object::read::ReadRef;
use std::collections::BTreeMap;

/// libtorch_cpu.so has 7 MB of symbols and names; a table ten times as large is not real.
const LARGEST_TABLE: u64 = 96 << 20;
/// Entry size of `.dynsym`.
const SYMBOL: u64 = 24;
/// A symbol with a version other than the default one.
const HIDDEN: u16 = 0x8000;

/// A symbol that another file must export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Undefined<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) hash: u32,
    /// The required version and library.
    pub(crate) version: Option<(&'a str, &'a str)>,
}

/// The symbol table of one file, in memory.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    table: Vec<u8>,
    strings: Vec<u8>,
    /// Version indices by symbol; empty in a file without versions.
    versym: Vec<u8>,
    required: BTreeMap<u16, (String, String)>,
    defined: BTreeMap<u16, String>,
    /// Hash (with its lowest bit set, which `.gnu.hash` does not store) and index of every exported symbol, by hash.
    exports: Vec<(u32, u32)>,
}

/// Reads the symbols of a file.
pub(crate) fn read<'data, R: ReadRef<'data>>(data: R) -> Result<Symbols, &'static str> {
    let file = File::open(data).map_err(|problem| problem.unwrap_or("is of another kind"))?;
    let Some(dynamic) = file.dynamic()? else { return Ok(Symbols::default()) };
    let Some(symtab) = dynamic.symtab else { return Ok(Symbols::default()) };
    let count = match file.symbol_count() {
        Some(count) => count,
        None => count_by_hash(&file, &dynamic).unwrap_or(0),
    };
    let mut symbols = Symbols {
        table: block(&file, symtab, count.saturating_mul(SYMBOL))?,
        strings: block(&file, dynamic.strtab, dynamic.strtab_size)?,
        versym: match dynamic.versym {
            Some(versym) => block(&file, versym, count.saturating_mul(2))?,
            None => Vec::new(),
        },
        ..Symbols::default()
    };
    for version in file.required_versions(&dynamic)? {
        if let Some(library) = version.library {
            symbols.required.insert(version.index, (version.name, library));
        }
    }
    for version in file.defined_versions(&dynamic)? {
        symbols.defined.insert(version.index, version.name);
    }
    let hashes = hashes(&file, &dynamic, count);
    let mut exports: Vec<(u32, u32)> = (symbols.entries().iter().enumerate())
        .filter(|(_, symbol)| is_export(symbol))
        .map(|(index, symbol)| {
            // Hashing the names of libtorch_cpu.so takes longer than everything else: the file has the hashes.
            let known = hashes.as_ref().and_then(|(base, words)| {
                let at = index.checked_sub(*base)?.checked_mul(4)?;
                Some(u32::from_le_bytes(words.get(at..at.checked_add(4)?)?.try_into().ok()?))
            });
            (known.unwrap_or_else(|| elf::gnu_hash(symbols.name(symbol))) | 1, index as u32)
        })
        .collect();
    exports.sort_unstable();
    symbols.exports = exports;
    Ok(symbols)
}

/// The chains of `.gnu.hash`: the index of its first symbol and the hash of each following one, whose lowest bit ends a
/// chain.
fn hashes<'data, R: ReadRef<'data>>(
    file: &File<'data, R>,
    dynamic: &Dynamic,
    count: u64,
) -> Option<(usize, &'data [u8])> {
    let (base, chains) = chains(file, dynamic)?;
    let size = count.checked_sub(base)?.checked_mul(4)?;
    Some((base as usize, file.data.read_bytes_at(chains, size.min(LARGEST_TABLE)).ok()?))
}

/// The index of the first symbol in `.gnu.hash`, and the start of its chains.
fn chains<'data, R: ReadRef<'data>>(
    file: &File<'data, R>,
    dynamic: &Dynamic,
) -> Option<(u64, u64)> {
    let (offset, _) = file.offset_of(dynamic.gnu_hash?)?;
    let word = |at: u64| word_at(file, offset.checked_add(at)?);
    let (buckets, base, bloom) = (word(0)?, word(4)?, word(8)?);
    let tables = u64::from(bloom) * 8 + u64::from(buckets) * 4;
    Some((base.into(), offset.checked_add(16)?.checked_add(tables)?))
}

fn word_at<'data, R: ReadRef<'data>>(file: &File<'data, R>, at: u64) -> Option<u32> {
    Some(u32::from_le_bytes(file.data.read_bytes_at(at, 4).ok()?.try_into().ok()?))
}

/// Copies a block out of the file, so that the reader's copy can be freed.
fn block<'data, R: ReadRef<'data>>(
    file: &File<'data, R>,
    address: u64,
    size: u64,
) -> Result<Vec<u8>, &'static str> {
    if size > LARGEST_TABLE {
        return Err("has a larger symbol table than any real library");
    }
    let (offset, _) = file.offset_of(address).ok_or("has a symbol table outside the file")?;
    let bytes = file.data.read_bytes_at(offset, size);
    bytes.map(<[u8]>::to_vec).map_err(|()| "has a symbol table outside the file")
}

/// The number of symbols from the hash table, for files without section headers: the end of the last chain.
fn count_by_hash<'data, R: ReadRef<'data>>(
    file: &File<'data, R>,
    dynamic: &Dynamic,
) -> Option<u64> {
    let (base, chains) = chains(file, dynamic)?;
    let (offset, _) = file.offset_of(dynamic.gnu_hash?)?;
    let size = u64::from(word_at(file, offset)?) * 4;
    let buckets =
        file.data.read_bytes_at(chains.checked_sub(size)?, size.min(LARGEST_TABLE)).ok()?;
    let last = buckets
        .chunks_exact(4)
        .filter_map(|bytes| bytes.try_into().ok().map(u32::from_le_bytes))
        .max()?;
    let mut index = u64::from(last);
    // A chain ends at the first odd hash; chains are short, so a long one means a damaged file.
    for _ in 0..10_000 {
        let at = index.checked_sub(base)?.checked_mul(4)?.checked_add(chains)?;
        index += 1;
        if word_at(file, at)? & 1 == 1 {
            return Some(index);
        }
    }
    None
}

fn is_export(symbol: &Sym64<LE>) -> bool {
    symbol.st_shndx.get(LE) != elf::SHN_UNDEF && symbol.st_bind() != elf::STB_LOCAL
}

impl Symbols {
    fn entries(&self) -> &[Sym64<LE>] {
        let count = self.table.len() / SYMBOL as usize;
        pod::slice_from_bytes(&self.table, count).map(|(entries, _)| entries).unwrap_or_default()
    }

    fn name(&self, symbol: &Sym64<LE>) -> &[u8] {
        let rest = self.strings.get(symbol.st_name.get(LE) as usize..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        &rest[..end]
    }

    /// The version index of a symbol; `None` in a file without versions.
    fn version_of(&self, index: usize) -> Option<u16> {
        let bytes = self.versym.get(index * 2..index * 2 + 2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The symbols that must be found to load the file, without weak ones.
    pub(crate) fn undefined(&self) -> impl Iterator<Item = Undefined<'_>> {
        self.entries().iter().enumerate().skip(1).filter_map(|(index, symbol)| {
            let wanted =
                symbol.st_shndx.get(LE) == elf::SHN_UNDEF && symbol.st_bind() == elf::STB_GLOBAL;
            let name = if wanted { self.name(symbol) } else { b"" };
            let version = self.version_of(index).and_then(|n| self.required.get(&(n & !HIDDEN)));
            (!name.is_empty()).then(|| Undefined {
                name,
                hash: elf::gnu_hash(name),
                version: version.map(|(version, library)| (version.as_str(), library.as_str())),
            })
        })
    }

    /// Whether the loader takes a symbol from this file, by the rules of glibc's check_match.
    pub(crate) fn provides(&self, wanted: &Undefined<'_>) -> bool {
        let wanted_hash = wanted.hash | 1;
        let from = self.exports.partition_point(|(hash, _)| *hash < wanted_hash);
        let entries = self.entries();
        self.exports[from..].iter().take_while(|(hash, _)| *hash == wanted_hash).any(
            |(_, index)| {
                let index = *index as usize;
                let Some(symbol) = entries.get(index) else { return false };
                if self.name(symbol) != wanted.name {
                    return false;
                }
                let Some(number) = self.version_of(index) else { return true };
                match (wanted.version, self.defined.get(&(number & !HIDDEN))) {
                    (Some((version, _)), Some(defined)) => version == defined,
                    // Exported without a version: matches any, unless hidden.
                    (Some(_), None) => number & HIDDEN == 0,
                    // Required without a version: the default one, or the library's oldest.
                    (None, _) => number & HIDDEN == 0 || number & !HIDDEN <= 2,
                }
            },
        )
    }

    /// Whether a function of this name is exported, with any version.
    pub(crate) fn exports_function(&self, name: &[u8]) -> bool {
        let hash = elf::gnu_hash(name);
        let wanted = Undefined { name, hash, version: None };
        self.provides(&wanted)
    }

    /// Up to `most` exports whose name starts with this prefix.
    pub(crate) fn beginning_with(&self, prefix: &[u8], most: usize) -> Vec<&[u8]> {
        // There are a hundred thousand names, and most files have none with this prefix.
        let finds = (memmem::find(&self.strings, prefix), memmem::rfind(&self.strings, prefix));
        let (Some(first), Some(last)) = finds else { return Vec::new() };
        let begins = |symbol: &&Sym64<LE>| {
            let start = symbol.st_name.get(LE) as usize;
            let rest = self.strings.get(start..).unwrap_or_default();
            (first..=last).contains(&start) && rest.starts_with(prefix) && is_export(symbol)
        };
        let names = self.entries().iter().filter(begins).map(|symbol| self.name(symbol));
        names.take(most).collect()
    }
}
