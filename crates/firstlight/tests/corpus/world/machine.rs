//! Changes to a recorded machine.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use super::World;
use crate::library::Library;

impl World {
    pub(crate) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.disk(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        if path.is_symlink() {
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        self.write(path, text);
        self
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        let path = self.disk(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    pub(crate) fn without(self, path: &str) -> Self {
        let path = self.disk(path);
        match path.is_dir() && !path.is_symlink() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
        self
    }

    /// An environment variable; `~` in it is the root of the recorded machine.
    pub(crate) fn var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    fn nvml(&self, change: impl FnOnce(&str) -> String) {
        let file = self.folder.path().join("nvml");
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        std::fs::write(file, change(&text)).unwrap();
    }

    /// Replaces the recorded GPU.
    pub(crate) fn gpu(self, name: &str, capability: &str) -> Self {
        self.nvml(|text| {
            let head = text.split("[gpu]").next().unwrap();
            format!("{head}[gpu]\nname = {name}\ncompute_capability = {capability}\nmemory_total = 25769803776\n")
        });
        self
    }

    /// Adds a GPU.
    pub(crate) fn second_gpu(self, name: &str, capability: &str) -> Self {
        self.nvml(|text| {
            format!("{text}\n[gpu]\nname = {name}\ncompute_capability = {capability}\n")
        });
        self
    }

    /// Adds a process to NVML's list for the last GPU.
    pub(crate) fn gpu_process(self, pid: u32, bytes: u64) -> Self {
        self.nvml(|text| format!("{text}process = {pid} compute {bytes}\n"));
        self
    }

    /// Sets the driver version everywhere on the machine.
    pub(crate) fn driver(self, version: &str, cuda: &str) -> Self {
        self.nvml(|text| {
            let lines = text.lines().map(|line| match line.split(" = ").next() {
                Some("driver") => format!("driver = {version}\n"),
                Some("cuda") => format!("cuda = {cuda}\n"),
                _ => format!("{line}\n"),
            });
            lines.collect()
        });
        let library = format!("usr/lib/{}-linux-gnu/libnvidia-ml.so", self.processor);
        let words = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        );
        self.file("proc/driver/nvidia/version", &words)
            .file("sys/module/nvidia/version", &format!("{version}\n"))
            .file(&format!("{library}.{version}"), "")
            .link(&format!("{library}.1"), &format!("/{library}.{version}"))
    }

    /// Makes the start of NVML fail with this message.
    pub(crate) fn nvml_fails(self, words: &str) -> Self {
        self.nvml(|_| format!("library = libnvidia-ml.so.1\nerror = {words}\n"));
        self
    }

    /// Adds a system library with its symbol versions.
    pub(crate) fn system(self, name: &str, library: &Library) -> Self {
        let path = format!("lib/{}-linux-gnu/{name}", self.processor);
        self.library_at(&path, library)
    }

    /// Adds a CUDA toolkit with nvcc.
    pub(crate) fn toolkit(self, folder: &str, version: &str) -> Self {
        self.file(&format!("{folder}/bin/nvcc"), "").file(
            &format!("{folder}/version.json"),
            &format!("{{\"cuda\": {{\"version\": \"{version}\"}}}}"),
        )
    }
}
