//! Small shared libraries, compiled once per description: exported, undefined and needed symbols, and GPU code in
//! nvcc's fatbin format.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

/// The description of a library.
#[derive(Debug, Clone, Default)]
pub struct Library {
    soname: Option<String>,
    /// `symbol`, or `symbol@VERSION`.
    exports: Vec<String>,
    wants: Vec<String>,
    linked: Vec<Library>,
    search: Option<String>,
    code: Vec<u8>,
    text: String,
    program: bool,
}

/// One image of GPU code: `sm_90a`, or `compute_80 8.7` with the PTX ISA version as the second word.
fn image(words: &str) -> Vec<u8> {
    let (name, isa) = words.split_once(' ').unwrap_or((words, "0.0"));
    let (kind, number) = name.split_once('_').unwrap();
    let digits = number.trim_end_matches(['a', 'f']);
    let (major, minor) = isa.split_once('.').unwrap();
    let flags: u64 = match number.trim_start_matches(digits) {
        "a" => 0x10_0000,
        "f" => 0x20_0000,
        _ => 0,
    };
    let kind: u16 = if kind == "sm" { 2 } else { 1 };
    let mut image = vec![0; 64 + 16];
    image[0..2].copy_from_slice(&kind.to_le_bytes());
    image[2..4].copy_from_slice(&0x101u16.to_le_bytes());
    image[4..8].copy_from_slice(&64u32.to_le_bytes());
    image[8..16].copy_from_slice(&16u64.to_le_bytes());
    image[24..26].copy_from_slice(&minor.parse::<u16>().unwrap().to_le_bytes());
    image[26..28].copy_from_slice(&major.parse::<u16>().unwrap().to_le_bytes());
    image[28..32].copy_from_slice(&digits.parse::<u32>().unwrap().to_le_bytes());
    image[40..48].copy_from_slice(&(flags | 0x11).to_le_bytes());
    image
}

/// This process's folder below the target folder. Statics are not dropped, so the folders of earlier processes are removed
/// first.
fn folder() -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libraries");
    std::fs::create_dir_all(&all).unwrap();
    for entry in std::fs::read_dir(&all).unwrap() {
        let path = entry.unwrap().path();
        if !Path::new("/proc").join(path.file_name().unwrap()).exists() {
            // Another process may remove the same folder.
            let _ = std::fs::remove_dir_all(path);
        }
    }
    let own = all.join(std::process::id().to_string());
    std::fs::create_dir_all(&own).unwrap();
    own
}

impl Library {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn named(soname: &str) -> Self {
        Self { soname: Some(soname.to_owned()), ..Self::default() }
    }

    pub fn exports(mut self, symbols: &[&str]) -> Self {
        self.exports.extend(symbols.iter().map(|&symbol| symbol.to_owned()));
        self
    }

    pub fn wants(mut self, symbols: &[&str]) -> Self {
        self.wants.extend(symbols.iter().map(|&symbol| symbol.to_owned()));
        self
    }

    /// Links with this library. At run time another one may be found.
    pub fn linked_with(mut self, other: &Library) -> Self {
        self.linked.push(other.clone());
        self
    }

    /// Sets the search path: `RPATH folders` or `RUNPATH folders`.
    pub fn search(mut self, words: &str) -> Self {
        self.search = Some(words.to_owned());
        self
    }

    /// Adds a container of GPU code with these images.
    pub fn code(mut self, images: &[&str]) -> Self {
        let body: Vec<u8> = images.iter().flat_map(|words| image(words)).collect();
        self.code.extend(0xBA55_ED50u32.to_le_bytes());
        self.code.extend(1u16.to_le_bytes());
        self.code.extend(16u16.to_le_bytes());
        self.code.extend((body.len() as u64).to_le_bytes());
        self.code.extend(body);
        self
    }

    /// A program that contains `words`, instead of a library.
    pub fn program(words: &str) -> Self {
        Self { program: true, ..Self::default() }.text(words)
    }

    /// Adds a string to the file's data.
    pub fn text(mut self, words: &str) -> Self {
        self.text = words.to_owned();
        self
    }

    fn source(&self) -> String {
        let mut source = String::new();
        for (index, export) in self.exports.iter().enumerate() {
            let symbol = export.split('@').next().unwrap();
            source +=
                &format!("void e{index}(void) __asm__(\"{symbol}\"); void e{index}(void) {{}}\n");
        }
        let mut calls = String::new();
        for (index, symbol) in self.wants.iter().enumerate() {
            source += &format!("void w{index}(void) __asm__(\"{symbol}\");\n");
            calls += &format!("w{index}(); ");
        }
        source += &format!("static int which(void) {{ {calls}return 1; }}\n");
        source +=
            "int (*const kept)(void) __attribute__((visibility(\"hidden\"), used)) = which;\n";
        if !self.code.is_empty() {
            let words: Vec<String> = self.code.iter().map(u8::to_string).collect();
            let section = "__attribute__((section(\".nv_fatbin\"), aligned(8), used))";
            source += &format!(
                "static const unsigned char code[] {section} = {{{}}};\n",
                words.join(",")
            );
        }
        if !self.text.is_empty() {
            source +=
                &format!("static const char text[] __attribute__((used)) = {:?};\n", self.text);
        }
        source
    }

    /// The version script of the versioned exports.
    fn versions(&self) -> String {
        let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (symbol, version) in self.exports.iter().filter_map(|export| export.split_once('@')) {
            nodes.entry(version).or_default().push(symbol);
        }
        nodes
            .iter()
            .map(|(version, symbols)| format!("{version} {{ global: {}; }};\n", symbols.join("; ")))
            .collect()
    }

    /// The compiled file, in a folder that all tests of this process share.
    fn file(&self) -> Arc<PathBuf> {
        type Files = Mutex<HashMap<String, Arc<OnceLock<Arc<PathBuf>>>>>;
        static FILES: LazyLock<Files> = LazyLock::new(Files::default);
        static FOLDER: LazyLock<PathBuf> = LazyLock::new(folder);
        let description = format!("{self:?}");
        let cell = FILES.lock().unwrap().entry(description.clone()).or_default().clone();
        cell.get_or_init(|| {
            let mut hasher = std::hash::DefaultHasher::new();
            std::hash::Hash::hash(&description, &mut hasher);
            let out = FOLDER.join(format!("{:x}.so", std::hash::Hasher::finish(&hasher)));
            self.compile(&out);
            Arc::new(out)
        })
        .clone()
    }

    fn compile(&self, out: &Path) {
        let (source, script) = (out.with_extension("c"), out.with_extension("versions"));
        let main = if self.program { "int main(void) { return 0; }\n" } else { "" };
        std::fs::write(&source, self.source() + main).unwrap();
        let mut command = Command::new("cc");
        if !self.program {
            command.args(["-shared", "-nostdlib", "-Wl,--allow-shlib-undefined"]);
        }
        // Symbols such as `free` must not conflict with compiler builtins.
        command.args(["-fPIC", "-fno-builtin", "-Wl,--no-as-needed", "-o"]).arg(out).arg(&source);
        command.args(self.linked.iter().map(|library| library.file().as_path().to_owned()));
        if let Some(soname) = &self.soname {
            command.arg(format!("-Wl,-soname,{soname}"));
        }
        if let Some((kind, folders)) =
            self.search.as_deref().and_then(|words| words.split_once(' '))
        {
            let tags = if kind == "RPATH" { "disable" } else { "enable" };
            command.arg(format!("-Wl,--{tags}-new-dtags,-rpath,{folders}"));
        }
        let versions = self.versions();
        if !versions.is_empty() {
            std::fs::write(&script, versions).unwrap();
            command.arg(format!("-Wl,--version-script={}", script.display()));
        }
        let done = command
            .output()
            .expect("a C compiler named cc, which libraries of tests are compiled with");
        assert!(done.status.success(), "{self:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// The file's bytes with `processor` as the machine of the ELF header, the only field that differs.
    pub fn bytes(&self, processor: &str) -> Vec<u8> {
        let mut bytes = std::fs::read(self.file().as_path()).unwrap();
        bytes[18] = if processor == "aarch64" { 183 } else { 62 };
        bytes
    }
}
