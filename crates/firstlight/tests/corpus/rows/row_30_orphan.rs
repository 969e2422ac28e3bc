//! Row 30: vLLM's worker, which outlived its server and holds the GPU's memory, and one whose server is there.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_30_orphan",
    rule: "stale-process",
    found: Detection::Files(Severity::Warning, "parent 1 (systemd)"),
    build: |twin| {
        let parent = twin.pick(1, 4000);
        World::on("a10")
            .gpu_process(4711, 21_474_836_480)
            .file("proc/uptime", "90000.00 80000.00\n")
            .file("proc/1/comm", "systemd\n")
            .file("proc/4000/comm", "vllm\n")
            .file("proc/4711/stat", &format!("4711 (VLLM::EngineCor) S {parent} 4711 4711 0 -1 4194304 1 0 0 0 5 5 0 0 20 0 9 0 1000 1 1\n"))
            .file("proc/4711/cmdline", "VLLM::EngineCore\0")
            .file("proc/4711/status", "Name:\tVLLM::EngineCor\nUid:\t1000\t1000\t1000\t1000\n")
    },
    ..BLANK
};
