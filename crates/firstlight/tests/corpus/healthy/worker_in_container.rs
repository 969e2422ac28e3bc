//! vLLM's worker in a container, whose process 1 is its own server; spoilt by a worker whose server is gone.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "worker_in_container",
    rule: "stale-process",
    found: Detection::Files(Severity::Warning, "VLLM::EngineCore"),
    build: |twin| {
        let comm = twin.pick("tini\n", "vllm\n");
        World::on("rtx4090")
            .gpu_process(211, 21_474_836_480)
            .file("proc/uptime", "9000.00 8000.00\n")
            .file("proc/1/comm", comm)
            .file("proc/211/stat", "211 (VLLM::EngineCor) S 1 211 211 0 -1 4194304 1 0 0 0 5 5 0 0 20 0 9 0 1000 1 1\n")
            .file("proc/211/cmdline", "VLLM::EngineCore\0")
            .file("proc/211/status", "Name:\tVLLM::EngineCor\nUid:\t0\t0\t0\t0\n")
            .file("proc/211/cgroup", "0::/\n")
            .link("proc/211/fd/30", "/dev/nvidia0")
    },
    ..BLANK
};
