//! The launchers, one per row. From their documentation of 2026-11-25; Slurm 22.05 and Open MPI 4.1.4 were tested.

/// The variables of a launcher.
#[derive(Debug)]
pub(crate) struct Launcher {
    /// Its usual name.
    pub(crate) name: &'static str,
    /// The variable that must be set for the others to count: a Slurm batch script has a rank before srun has started
    /// any.
    pub(super) mark: Option<&'static str>,
    pub(super) rank: &'static str,
    pub(super) size: &'static str,
    /// `None` if every host has one rank.
    pub(super) local_rank: Option<&'static str>,
    /// Ranks of this host: a number, or Slurm's counts of all nodes.
    pub(super) local_size: Option<&'static str>,
    /// Whether some of its variables are usually set when another launcher starts the processes.
    pub(super) around_others: bool,
    /// Another variable with the rank.
    pub(super) also: Option<&'static str>,
    pub(super) leader: Leader,
    /// The port of the launcher's own store; firstlight uses the next one.
    pub(super) port: Option<&'static str>,
    /// Variables with the same value on all ranks, which identify this job.
    pub(super) job: &'static [&'static str],
    /// The hint for a missing variable.
    pub(super) hint: &'static str,
}

/// How it gives the address of rank 0.
#[derive(Debug)]
pub(super) enum Leader {
    /// In this variable.
    Named(&'static str),
    /// The first of the addresses in this variable.
    FirstOf(&'static str),
    /// The first of Slurm's nodes in this variable: `gpu[01-04,07]`.
    FirstOfNodes(&'static str),
    /// It does not.
    Unset,
}

const BLANK: Launcher = Launcher {
    name: "",
    mark: None,
    rank: "",
    size: "",
    local_rank: None,
    local_size: None,
    around_others: false,
    also: None,
    leader: Leader::Unset,
    port: None,
    job: &[],
    hint: "",
};

/// Every launcher. A new one is a row.
pub(crate) const LAUNCHERS: &[Launcher] = &[
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: Some("LOCAL_RANK"),
        local_size: Some("LOCAL_WORLD_SIZE"),
        leader: Leader::Named("MASTER_ADDR"),
        port: Some("MASTER_PORT"),
        job: &["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"],
        hint: "torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT: `torchrun --no-python firstlight ...`",
        ..BLANK
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: Some("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        also: Some("PMIX_RANK"),
        // The first is 128 random bits that mpirun generates for each job.
        job: &["OMPI_MCA_orte_precondition_transports", "OMPI_MCA_ess_base_jobid", "MASTER_ADDR"],
        hint: "with several hosts, mpirun has to pass the address of rank 0: `mpirun -x MASTER_ADDR=HOST ...`",
        ..BLANK
    },
    Launcher {
        name: "Slurm",
        mark: Some("SLURM_STEP_ID"),
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: Some("SLURM_LOCALID"),
        local_size: Some("SLURM_STEP_TASKS_PER_NODE"),
        leader: Leader::FirstOfNodes("SLURM_STEP_NODELIST"),
        job: &["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_SRUN_COMM_PORT"],
        hint: "start it by srun, which sets SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID for each task",
        ..BLANK
    },
    Launcher {
        name: "LeaderWorkerSet",
        rank: "LWS_WORKER_INDEX",
        size: "LWS_GROUP_SIZE",
        leader: Leader::Named("LWS_LEADER_ADDRESS"),
        job: &["LWS_LEADER_ADDRESS"],
        hint: "LeaderWorkerSet sets LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX in each of its pods",
        ..BLANK
    },
    // Kubernetes sets only the index; `check --emit kubernetes-job` writes the other values into the Job.
    Launcher {
        name: "Kubernetes (Indexed Job, JobSet)",
        rank: "JOB_COMPLETION_INDEX",
        size: "FIRSTLIGHT_RANKS",
        around_others: true,
        leader: Leader::Named("FIRSTLIGHT_LEADER"),
        job: &["FIRSTLIGHT_LEADER"],
        hint: "set FIRSTLIGHT_RANKS to the completions of the Job and FIRSTLIGHT_LEADER to the name of pod 0, as `firstlight check --emit kubernetes-job` does",
        ..BLANK
    },
    Launcher {
        name: "SkyPilot",
        rank: "SKYPILOT_NODE_RANK",
        size: "SKYPILOT_NUM_NODES",
        leader: Leader::FirstOf("SKYPILOT_NODE_IPS"),
        job: &["SKYPILOT_TASK_ID", "SKYPILOT_NODE_IPS"],
        hint: "SkyPilot sets SKYPILOT_NODE_RANK, SKYPILOT_NUM_NODES and SKYPILOT_NODE_IPS in each task",
        ..BLANK
    },
];
