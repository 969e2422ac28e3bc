use super::{Context, Need, Rule};
use facts::CompactSort;
use facts::{Confidence, Finding, GpuProcess, Machine, Severity};
use std::collections::BTreeMap;
pub(super) const RULE: Rule = Rule {
    id: "duplicate-processes",
    title: "several processes of one program on one GPU",
    about: "\
The same program runs more than once on one GPU, each copy with its own weights and cache. Often an earlier run was
forgotten in another terminal or notebook, or a server was started twice; it can also be intended. Each copy of a model
of 6 to 7 GB takes another 6 to 7 GB.

It shows as memory that is nearly full before a run begins:
  18973MiB / 23028MiB
with several python processes of about the same size in nvidia-smi.

Detected by joining NVML's process list with the command lines; workers of one parent are not counted as copies.

Check the age of each process and stop those that are no longer needed, one by one, by PID. This is not a memory leak:
the memory of a process is freed when it ends.",
    links: &[
        "https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    ],
    texts: &[
    ],
    remedy: |_| vec!["firstlight ps".into()],
    needs: &[Need::Driver],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let mut copies: BTreeMap<(u32, &str), Vec<&GpuProcess>> = BTreeMap::new();
    for process in &machine.gpu_processes {
        let Some(program) = process.program.as_deref().filter(|program| !program.is_empty()) else {
            continue;
        };
        for it in &process.uses {
            copies.entry((it.gpu, program)).or_default().push(process);
        }
    }
    copies
        .into_iter()
        .filter_map(|((gpu, program), processes)| {
            judge(machine, gpu, program, &heads(machine, &processes))
        })
        .collect()
}

/// Removes processes that another process of the list, or its launcher, started: a program and its workers are one run.
fn heads<'a>(machine: &Machine, processes: &[&'a GpuProcess]) -> Vec<&'a GpuProcess> {
    let parent_of = |pid: u32| {
        let process = machine.gpu_processes.iter().find(|process| process.pid == pid);
        process.and_then(|process| process.parent.as_ref()).map(|fact| fact.value.0)
    };
    let below_another = |process: &&GpuProcess| {
        let mut pid = parent_of(process.pid);
        // The step limit ends a cycle of parents, which /proc can show while it changes.
        for _ in 0..=machine.gpu_processes.len() {
            match pid {
                Some(found) if processes.iter().any(|other| other.pid == found) => return true,
                Some(found) => pid = parent_of(found),
                None => return false,
            }
        }
        false
    };
    let heads: Vec<&GpuProcess> =
        processes.iter().copied().filter(|process| !below_another(process)).collect();
    // Workers that a launcher such as torchrun started together.
    let parent = |process: &GpuProcess| process.parent.as_ref().map(|fact| fact.value.clone());
    let launched = |process: &&GpuProcess| {
        let Some((pid, name)) = parent(process) else { return false };
        let program =
            name.contains("torchrun") || name.contains("python") || name.contains("accelerate");
        let older = heads
            .iter()
            .any(|other| other.pid < process.pid && parent(other).is_some_and(|it| it.0 == pid));
        program && older
    };
    heads.iter().copied().filter(|process| !launched(process)).collect()
}

fn judge(machine: &Machine, gpu: u32, program: &str, processes: &[&GpuProcess]) -> Option<Finding> {
    if processes.len() < 2 {
        return None;
    }
    let pids: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    let mut draft = RULE.finding(
        Severity::Warning,
        Confidence::Possible,
        format!(
            "{} processes of the same program on GPU {gpu}: {program} ({})",
            processes.len(),
            pids.join(", ")
        ),
    );
    for process in processes {
        let bytes = process.uses.iter().find(|it| it.gpu == gpu).and_then(|it| it.bytes);
        let bytes = bytes.map_or("memory that is not counted".to_owned(), |bytes| {
            format!("{} MiB", bytes >> 20)
        });
        let age = process
            .age_seconds
            .as_ref()
            .map_or(String::new(), |age| format!(", running {}", duration(age.value)));
        let source = process.command.as_ref().map_or("NVML".to_owned(), |fact| fact.source.clone());
        draft = draft.evidence(format!("process {}: {bytes}{age}", process.pid), source);
    }
    let known = machine.gpus.iter().find(|known| known.index == gpu);
    if let Some((used, total)) = known
        .and_then(|gpu| Some((gpu.memory_used_bytes.as_ref()?, gpu.memory_total_bytes.as_ref()?)))
    {
        draft = draft.evidence(
            format!("GPU {gpu} has {} of {} MiB in use", used.value >> 20, total.value >> 20),
            used.source.clone(),
        );
    }
    // The youngest process is most likely the run in use.
    let mut oldest = processes.to_vec();
    oldest.compact_sort_by_key(|process| {
        std::cmp::Reverse(process.age_seconds.as_ref().map_or(0, |age| age.value))
    });
    let mut fix =
        vec!["# stop unneeded processes one by one; it asks before it stops a process:".to_owned()];
    fix.extend(
        oldest[..oldest.len() - 1]
            .iter()
            .map(|process| format!("firstlight ps --stop {}", process.pid)),
    );
    Some(
        draft
            .cause("Each copy holds its own weights and cache. This may be intended; often an earlier run was forgotten.")
            .fix(fix)
            .finish(),
    )
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines, processes::process};
    use facts::{Confidence::*, Fact, GpuProcess, Machine, Severity::*};

    fn with(processes: Vec<GpuProcess>) -> Machine {
        let mut machine = machines::a10();
        machine.gpus[0].memory_used_bytes =
            Some(Fact::new(18_973 << 20, "NVML nvmlDeviceGetMemoryInfo_v2"));
        machine.gpu_processes = processes;
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let run = |pid: u32, parent: u32, name: &str| {
            process(pid, "python inference.py", parent, name, 6_324)
        };
        let other_gpu = |mut process: GpuProcess| {
            process.uses[0].gpu = 1;
            process
        };
        vec![
            Case::new(
                "row R2-04",
                with(vec![run(4_711, 100, "bash"), run(4_899, 101, "bash"), run(5_020, 102, "bash")]),
                vec![],
            )
            .finds(
                Warning,
                Possible,
                &[
                    "3 processes of the same program on GPU 0: python inference.py (4711, 4899, 5020)",
                    "process 4711: 6324 MiB, running 2 h [/proc/4711/cmdline]",
                    "GPU 0 has 18973 of 23028 MiB in use",
                    "firstlight ps --stop 4711",
                ],
            )
            .without(&["leak"]),
            Case::new("a program and its workers", with(vec![run(10, 1, "bash"), run(11, 10, "python"), run(12, 11, "python")]), vec![]),
            Case::new("workers of one launcher", with(vec![run(11, 10, "torchrun"), run(12, 10, "torchrun")]), vec![]),
            Case::new("one on each GPU", with(vec![run(11, 100, "bash"), other_gpu(run(12, 101, "bash"))]), vec![]),
            Case::new("different programs", with(vec![
                run(11, 100, "bash"),
                process(12, "python train.py", 101, "bash", 6_324),
            ]), vec![]),
        ]
    }
}
