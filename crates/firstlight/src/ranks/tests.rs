use super::*;
use std::collections::BTreeMap;

fn ask(set: &[(&str, &str)]) -> Result<Rank, String> {
    let map: BTreeMap<&str, &str> = set.iter().copied().collect();
    of(&|name| map.get(name).map(|value| (*value).to_owned())).map_err(|error| error.to_string())
}

/// srun's variables of a task: its rank, the tasks, its local rank, and the tasks of each node.
fn slurm<'a>(
    rank: &'a str,
    size: &'a str,
    local: &'a str,
    each: &'a str,
) -> Vec<(&'a str, &'a str)> {
    vec![
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_PROCID", rank),
        ("SLURM_STEP_NUM_TASKS", size),
        ("SLURM_LOCALID", local),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", each),
        ("SLURM_STEP_NODELIST", "gpu[03-04]"),
    ]
}

fn mpi<'a>(rank: &'a str, size: &'a str, local: &'a str, here: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("OMPI_COMM_WORLD_RANK", rank),
        ("OMPI_COMM_WORLD_SIZE", size),
        ("OMPI_COMM_WORLD_LOCAL_RANK", local),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", here),
        ("PMIX_RANK", rank),
    ]
}

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "16"),
    ("LOCAL_RANK", "5"),
    ("LOCAL_WORLD_SIZE", "8"),
    ("MASTER_ADDR", "10.0.0.1"),
    ("MASTER_PORT", "29500"),
];

#[test]
fn each_launcher_tells_rank_size_local_rank_and_leader() {
    let kubernetes = [
        ("JOB_COMPLETION_INDEX", "1"),
        ("FIRSTLIGHT_RANKS", "2"),
        ("FIRSTLIGHT_LEADER", "check-0.check"),
    ];
    let lws = [
        ("LWS_WORKER_INDEX", "1"),
        ("LWS_GROUP_SIZE", "4"),
        ("LWS_LEADER_ADDRESS", "vllm-0.vllm.default"),
    ];
    let sky = [
        ("SKYPILOT_NODE_RANK", "2"),
        ("SKYPILOT_NUM_NODES", "3"),
        ("SKYPILOT_NODE_IPS", "10.1.0.7\n10.1.0.8\n10.1.0.9"),
    ];
    type Expect = (&'static str, (u32, u32, u32), &'static str);
    let cases: [(&[(&str, &str)], Expect); 6] = [
        (TORCHRUN, ("torchrun", (5, 16, 5), "10.0.0.1")),
        (&mpi("3", "4", "3", "4"), ("Open MPI", (3, 4, 3), "127.0.0.1")),
        (&slurm("6", "8", "2", "4(x2)"), ("Slurm", (6, 8, 2), "gpu03")),
        (&lws, ("LeaderWorkerSet", (1, 4, 0), "vllm-0.vllm.default")),
        (&kubernetes, ("Kubernetes (Indexed Job, JobSet)", (1, 2, 0), "check-0.check")),
        (&sky, ("SkyPilot", (2, 3, 0), "10.1.0.7")),
    ];
    let mut seen = Vec::new();
    for (set, (launcher, numbers, leader)) in cases {
        let got = ask(set).unwrap();
        assert_eq!((got.launcher, got.leader.as_str()), (launcher, leader));
        assert_eq!((got.rank, got.size, got.local_rank), numbers, "{launcher}");
        seen.push(launcher);
    }
    assert!(LAUNCHERS.iter().all(|launcher| seen.contains(&launcher.name)));
    // torchrun's own store uses the port that it names.
    assert_eq!(ask(TORCHRUN).unwrap().port, 29501);
}

#[test]
fn the_port_is_the_jobs_and_the_same_on_every_rank() {
    let (one, two) =
        (ask(&slurm("0", "2", "0", "2")).unwrap(), ask(&slurm("1", "2", "1", "2")).unwrap());
    assert_eq!((one.port, &one.job), (two.port, &two.job));
    let mut other = slurm("0", "2", "0", "2");
    other[1].1 = "18";
    let other = ask(&other).unwrap();
    assert!(other.port != one.port && other.job != one.job);
    let mut secret = slurm("0", "2", "0", "2");
    secret.push((TOKEN, "of ours"));
    assert_eq!(ask(&secret).unwrap().job, "of ours");
}

#[test]
fn a_launcher_within_another_is_fine() {
    // mpirun within a batch script, which has a rank before srun has started any.
    let batch = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "0"),
    ];
    let got = ask(&[&mpi("2", "4", "2", "4")[..], &batch].concat()).unwrap();
    assert_eq!((got.launcher, got.rank), ("Open MPI", 2));
    // mpirun's daemons are a step of one task per node.
    let got = ask(&[mpi("7", "8", "3", "4"), slurm("1", "2", "0", "1(x2)")].concat()).unwrap();
    assert_eq!((got.launcher, got.rank, got.leader.as_str()), ("Open MPI", 7, "gpu03"));
    // srun starts one torchrun per node.
    let got = ask(&[TORCHRUN, &slurm("0", "2", "0", "1(x2)")].concat()).unwrap();
    assert_eq!((got.launcher, got.rank), ("torchrun", 5));
    // Every pod of an Indexed Job has its index, whichever launcher starts the ranks in it.
    let got = ask(&[TORCHRUN, &[("JOB_COMPLETION_INDEX", "0")]].concat()).unwrap();
    assert_eq!((got.launcher, got.rank), ("torchrun", 5));
    // Both have the same numbers.
    let got = ask(&[mpi("1", "2", "1", "2"), slurm("1", "2", "1", "2")].concat()).unwrap();
    assert_eq!(got.rank, 1);
}

#[test]
fn contradicting_variables_are_refused_with_names_and_values() {
    let check = |set: &[(&str, &str)], words: &[&str]| {
        let said = ask(set).unwrap_err();
        assert!(words.iter().all(|word| said.contains(word)) && !said.contains('\n'), "{said}");
    };
    check(&[], &["no launcher's variables are set"]);
    check(&[("SLURM_JOB_ID", "1"), ("SLURM_PROCID", "0")], &["no launcher's variables are set"]);
    check(
        &[("RANK", "1"), ("WORLD_SIZE", "4")],
        &["only some of the variables of", "torchrun", "RANK=1 WORLD_SIZE=4", "without LOCAL_RANK"],
    );
    check(&[("LOCAL_RANK", "")], &["no launcher's variables"]);
    check(
        &[("JOB_COMPLETION_INDEX", "1")],
        &["JOB_COMPLETION_INDEX=1", "without FIRSTLIGHT_RANKS"],
    );
    check(
        &slurm("8", "8", "0", "4(x2)"),
        &["out of range", "SLURM_PROCID=8 SLURM_STEP_NUM_TASKS=8"],
    );
    check(
        &slurm("4", "8", "4", "4(x2)"),
        &["out of range", "SLURM_LOCALID=4", "SLURM_STEP_TASKS_PER_NODE=4(x2)"],
    );
    check(&mpi("1", "x", "1", "2"), &["OMPI_COMM_WORLD_SIZE=x is not a number"]);
    check(&mpi("1", "4", "1", "2"), &["Open MPI does not define the host of rank 0"]);
    let mut pmix = mpi("1", "2", "1", "2");
    pmix[4].1 = "0";
    check(&pmix, &["PMIX_RANK=0 contradicts OMPI_COMM_WORLD_RANK=1"]);
    // Two launchers for the same processes.
    check(
        &[mpi("1", "4", "1", "4"), slurm("2", "4", "2", "4")].concat(),
        &["two launchers disagree", "OMPI_COMM_WORLD_RANK=1", "SLURM_PROCID=2"],
    );
    // Four tasks of one node cannot each have started a part of one mpirun's two.
    check(
        &[mpi("1", "2", "1", "2"), slurm("2", "4", "2", "4")].concat(),
        &["two launchers disagree", "SLURM_STEP_NUM_TASKS=4"],
    );
}
