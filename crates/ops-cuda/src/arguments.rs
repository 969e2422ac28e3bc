//! Kernel arguments as structs, each checked against the kernel's source and cubins.

/// [`device::arguments!`], plus one test per kernel, with the kernel's name. The test compares the fields with the parameters in
/// the source (name, type, order) and with the parameter offsets and sizes in every cubin of the bundle.
macro_rules! arguments {
    ($(#[$about:meta])* $visible:vis $name:ident $(: $($kernel:ident)|+)? { $($fields:tt)* }) => {
        ::device::arguments! { $(#[$about])* $visible $name $(: $($kernel)|+)? { $($fields)* } }
        $($(
            #[cfg(test)]
            #[test]
            fn $kernel() {
                $crate::arguments::check(stringify!($kernel), $name::LAYOUT);
            }
        )+)?
    };
}
pub(crate) use arguments;

#[cfg(test)]
pub(crate) use tests::check;

#[cfg(test)]
mod tests {
    use crate::{BUNDLE, bundled};
    use device::cuda::{KernelSource, Parameter, ParameterLayout};
    use std::path::Path;
    use std::sync::OnceLock;

    /// Sources of all kernels.
    fn texts() -> &'static [String] {
        fn read(folder: &Path, texts: &mut Vec<String>) {
            for entry in folder.read_dir().unwrap() {
                let path = entry.unwrap().path();
                match path.extension() {
                    _ if path.is_dir() => read(&path, texts),
                    Some(end) if end == "cu" => texts.push(std::fs::read_to_string(path).unwrap()),
                    _ => {}
                }
            }
        }
        static TEXTS: OnceLock<Vec<String>> = OnceLock::new();
        TEXTS.get_or_init(|| {
            let mut texts = Vec::new();
            read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut texts);
            texts
        })
    }

    /// Parameters of a kernel in its source: kind and name. The source does not say whether a pointer may be null.
    fn declared<'t>(text: &'t str, kernel: &str) -> Option<Vec<(&'static str, &'t str)>> {
        let (_, from) = text.split_once("extern \"C\"")?;
        let (_, list) = from.split_once(&format!(" {kernel}("))?;
        let (list, _) = list.split_once(')')?;
        let parameter = |one: &'t str| {
            let kind = |word| match word {
                "int" => Some("i32"),
                "i64" => Some("i64"),
                "float" => Some("f32"),
                "double" => Some("f64"),
                "TensorMap" => Some("Map"),
                _ => None,
            };
            let (of, name) = one.trim().rsplit_once(' ').unwrap();
            let kind = match of.contains('*') {
                true => "Pointer",
                false => of.split(' ').find_map(kind).unwrap(),
            };
            (kind, name)
        };
        Some(list.split(',').map(parameter).collect())
    }

    fn number(bytes: &[u8], at: usize, size: usize) -> usize {
        bytes[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    }

    /// (Offset, size) in bytes of a kernel's parameters in a cubin, offsets relative to the first parameter: `EIATTR_KPARAM_INFO`
    /// in section `.nv.info.KERNEL`. On Hopper a first parameter that is a TMA descriptor is at offset 48, because the parameter
    /// area begins 16 bytes after a multiple of 64.
    fn compiled(cubin: &[u8], kernel: &str) -> Vec<(usize, usize)> {
        const PARAMETER: u8 = 0x17;
        /// `EIFMT_SVAL`: a size and that many bytes follow.
        const SIZED: u8 = 4;
        let table = number(cubin, 0x28, 8);
        let header = |nth: usize| table + 64 * nth;
        let names = number(cubin, header(number(cubin, 0x3e, 2)) + 24, 8);
        let wanted = format!(".nv.info.{kernel}\0");
        let sections = (0..number(cubin, 0x3c, 2)).map(header);
        let mut found = sections.filter(|section| {
            cubin[names + number(cubin, *section, 4)..].starts_with(wanted.as_bytes())
        });
        let section = found.next().expect("the kernel's section");
        let from = number(cubin, section + 24, 8);
        let mut records = &cubin[from..from + number(cubin, section + 32, 8)];
        let mut parameters = Vec::new();
        while !records.is_empty() {
            let size = if records[0] == SIZED { number(records, 2, 2) } else { 0 };
            if records[1] == PARAMETER {
                let place = (number(records, 10, 2), number(records, 12, 4) >> 18 & 0x3fff);
                parameters.push((number(records, 8, 2), place));
            }
            records = &records[4 + size..];
        }
        parameters.sort();
        let first = parameters.first().map_or(0, |(_, (offset, _))| *offset);
        parameters.into_iter().map(|(_, (offset, size))| (offset - first, size)).collect()
    }

    /// Compares a struct of arguments with its kernel's source and cubins.
    pub(crate) fn check(kernel: &str, layout: &ParameterLayout) {
        let kind = |of: &Parameter| if of.kind == "Nullable" { "Pointer" } else { of.kind };
        let fields: Vec<_> = layout.parameters.iter().map(|of| (kind(of), of.name)).collect();
        let mut found = texts().iter().filter_map(|text| declared(text, kernel));
        assert_eq!(fields, found.next().expect("the kernel's text"), "{kernel}");
        static SOURCES: OnceLock<Vec<KernelSource>> = OnceLock::new();
        let sources = SOURCES.get_or_init(bundled).iter().filter(|source| source.name() == kernel);
        let places: Vec<_> = layout.parameters.iter().map(|of| (of.offset, of.bytes)).collect();
        for source in sources {
            let cubin = BUNDLE.find(&source.key()).expect("a kernel of the bundle");
            assert_eq!(places, compiled(&cubin, kernel), "{}", source.label());
        }
    }
}
