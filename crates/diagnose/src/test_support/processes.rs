//! Processes on a GPU, as `probe` would record them.

use facts::{Fact, GpuProcess, GpuUse};

/// A sleeping process of user 1000 that has run for two hours and has `mib` of GPU 0.
pub(crate) fn process(
    pid: u32,
    command: &str,
    parent: u32,
    parent_name: &str,
    mib: u64,
) -> GpuProcess {
    let file = |name: &str| format!("/proc/{pid}/{name}");
    GpuProcess {
        pid,
        uses: vec![GpuUse { gpu: 0, bytes: Some(mib << 20), kind: "compute".into() }],
        name: Some(Fact::new(command.chars().take(15).collect(), file("stat"))),
        command: Some(Fact::new(command.into(), file("cmdline"))),
        program: Some(command.into()),
        uid: Some(Fact::new(1000, file("status"))),
        parent: Some(Fact::new((parent, parent_name.into()), file("stat"))),
        age_seconds: Some(Fact::new(7_200, format!("{} and /proc/uptime", file("stat")))),
        state: Some(Fact::new("S".into(), file("stat"))),
        ..GpuProcess::default()
    }
}
