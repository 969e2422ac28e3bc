//! Two workers that one torchrun started on one GPU are one run; spoilt by each having been started from its own shell.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "workers_of_one_run",
    rule: "duplicate-processes",
    found: Detection::Files(Severity::Warning, "process 5002: 6144 MiB"),
    build: |twin| {
        let worker = |world: World, pid: u32, parent: u32| {
            let stat = format!(
                "{pid} (python) S {parent} {pid} {pid} 0 -1 4194304 1 0 0 0 5 5 0 0 20 0 9 0 1000 1 1\n"
            );
            world
                .gpu_process(pid, 6 << 30)
                .file(&format!("proc/{pid}/stat"), &stat)
                .file(&format!("proc/{pid}/cmdline"), "/home/user/venv/bin/python\0train.py\0")
        };
        let world = World::on("a10")
            .file("proc/uptime", "90000.00 80000.00\n")
            .file("proc/900/comm", twin.pick("bash\n", "torchrun\n"))
            .file("proc/901/comm", "bash\n");
        let world = worker(world, 5001, 900);
        worker(world, 5002, twin.pick(901, 900))
    },
    ..BLANK
};
