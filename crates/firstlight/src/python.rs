//! The Python environment whose kernels `verify`, `bench` and `check` run.

mod demands;

pub(crate) use demands::{PeerResult, failed_row, seen};

use demands::Demands;

use crate::cli::PeerChoice;
use crate::failure::Failure;
use facts::BackendKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use verify::{Peer, Peers, ProcessLimits, Python, Session};

/// A started environment and the peers to run in it.
pub(crate) struct Environment {
    session: Session,
    peers: Vec<Peer>,
    backend: BackendKind,
    budget: Option<Duration>,
    demands: Demands,
}

impl Environment {
    /// For each option that selects kernels of which none ran: the option, and why.
    pub(crate) fn unmet<'a>(
        &self,
        seen: impl Iterator<Item = PeerResult<'a>>,
    ) -> Vec<(&str, String)> {
        self.demands.unmet(seen, self.session.broken_torch())
    }

    /// Whether the command line selects kernels, and not only the environment.
    pub(crate) fn names_kernels(&self) -> bool {
        self.demands.names_kernels()
    }

    /// Whether any of its kernels is of one of these ops.
    pub(crate) fn has_kernels_of(&self, ops: &[&str]) -> bool {
        self.peers.iter().any(|peer| ops.contains(&peer.op.as_str()))
    }

    /// Whether it has the package of any kernel that firstlight knows.
    pub(crate) fn has_listed_package(&self) -> bool {
        self.session.has_listed_package()
    }

    /// Its peers, for verification.
    pub(crate) fn peers(&mut self) -> Peers<'_> {
        let Self { session, peers, backend, budget, .. } = self;
        Peers { session, peers, backend: *backend, budget: *budget }
    }

    /// The backend that they run on.
    pub(crate) fn backend(&self) -> BackendKind {
        self.backend
    }

    /// Its peers, for timing: all together have as much time as any two of them had for verification.
    pub(crate) fn peers_to_time(&mut self) -> Peers<'_> {
        let peers = self.peers();
        Peers { budget: peers.budget.map(|budget| 2 * budget), ..peers }
    }

    /// Sets the time limit of each peer, unless the arguments have one.
    pub(crate) fn within(self, budget: Duration) -> Self {
        Self { budget: self.budget.or(Some(budget)), ..self }
    }

    /// Continues in another session.
    pub(crate) fn switch_session(&mut self, session: Session) {
        self.session = session;
    }
}

/// Starts the selected environment; `None` if none is selected. `ops` are the ops of the command. `backend` is the
/// backend of the peers; without one, the GPU if torch can use it.
pub(crate) fn start(
    venv: Option<&Path>,
    arguments: &PeerChoice,
    ops: &[&str],
    backend: Option<BackendKind>,
) -> anyhow::Result<Option<Environment>> {
    let interpreter = match (venv, &arguments.python) {
        (_, Some(python)) => python.clone(),
        (Some(folder), None) => interpreter_of(folder)?,
        (None, None) => {
            if arguments.names_any() {
                let hint =
                    "name the environment with --venv DIR, or its interpreter with --python EXE";
                return Err(Failure::hinted(
                    "there is no Python environment to run peers in",
                    hint,
                ));
            }
            return Ok(None);
        }
    };
    let (peers, demands) = demands::read(venv, arguments, ops)?;
    let limits = ProcessLimits {
        time: Duration::from_secs(arguments.peer_timeout),
        memory_bytes: arguments.peer_memory << 30,
    };
    let paths = arguments.peer_path.iter().map(|path| absolute(path)).collect();
    let session = Session::start(Python { interpreter, paths, limits })
        .map_err(|error| Failure::hinted(error.to_string(), "run the interpreter alone"))?;
    let backend = match (backend, session.cuda()) {
        (Some(BackendKind::Cuda), Err(why)) => {
            let hint = "use --backend cpu to run its kernels on the processor";
            return Err(Failure::hinted(
                format!("none of its kernels can run on a GPU: {why}"),
                hint,
            ));
        }
        (Some(backend), _) => backend,
        (None, Ok(())) => BackendKind::Cuda,
        (None, Err(_)) => BackendKind::Cpu,
    };
    let budget = arguments.peer_budget.map(Duration::from_secs);
    Ok(Some(Environment { session, peers, backend, budget, demands }))
}

/// The interpreter of a virtual or conda environment.
fn interpreter_of(folder: &Path) -> anyhow::Result<PathBuf> {
    let names = ["bin/python", "bin/python3"];
    let found = names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    found.map(|path| absolute(&path)).ok_or_else(|| {
        let hint = "name a folder with bin/python, or the interpreter itself with --python EXE";
        Failure::hinted(format!("{} has no Python interpreter", folder.display()), hint)
    })
}

/// Not resolved: the symbolic link identifies the virtual environment.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
