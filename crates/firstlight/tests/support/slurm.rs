//! A Slurm cluster for tests: one node, this machine, with separate daemons and keys below a folder.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The required programs, in Debian's packages slurm-wlm and munge.
const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "srun", "scontrol"];

/// The cluster, whose daemons are stopped on drop.
pub struct Slurm {
    conf: PathBuf,
    node: String,
    daemons: Vec<Child>,
}

/// The path of a program. Daemons are often in an sbin folder outside of PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(usual);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Slurm {
    /// Starts the cluster in an empty folder, with `lines` added to its configuration.
    ///
    /// # Errors
    /// The missing program, if Slurm is not installed.
    pub fn start(folder: &Path, lines: &str) -> Result<Self, String> {
        let missing = PROGRAMS.iter().find(|name| program(name).is_none());
        if let Some(name) = missing {
            return Err(format!(
                "SKIP, which is no pass: there is no {name} here; `apt-get install slurm-wlm munge`"
            ));
        }
        let at = |name: &str| folder.join(name);
        let shown = |name: &str| at(name).display().to_string();
        std::fs::write(at("key"), [folder.as_os_str().as_encoded_bytes(), &[7; 64]].concat())
            .unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(at("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let said = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let (user, node) = (said("id", &["-un"]), said("hostname", &["-s"]));
        let conf = at("slurm.conf");
        let text = format!(
            "ClusterName=test\nSlurmctldHost={node}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={socket}\nCredType=cred/munge\n\
             SlurmctldPort={}\nSlurmdPort={}\nStateSaveLocation={}\nSlurmdSpoolDir={}\n\
             SlurmctldPidFile={}\nSlurmdPidFile={}\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/linear\nSlurmdParameters=config_overrides\nReturnToService=2\nKillOnBadExit=0\n\
             NodeName={node} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n{lines}\n",
            port(),
            port(),
            shown("state"),
            shown("spool"),
            shown("slurmctld.pid"),
            shown("slurmd.pid"),
            socket = shown("munge.socket"),
        );
        std::fs::write(&conf, text).unwrap();
        for name in ["state", "spool"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let mut slurm = Self { conf, node, daemons: Vec::new() };
        let socket = format!("--socket={}", shown("munge.socket"));
        let (key, pid) =
            (format!("--key-file={}", shown("key")), format!("--pid-file={}", shown("munge.pid")));
        let (log, seed) = (
            format!("--log-file={}", shown("munge.log")),
            format!("--seed-file={}", shown("seed")),
        );
        slurm.daemon(
            "munged",
            &["--foreground", "--force", &socket, &key, &pid, &log, &seed],
            folder,
        );
        let until = Instant::now() + Duration::from_secs(20);
        while !at("munge.socket").exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let conf = slurm.conf.display().to_string();
        slurm.daemon("slurmctld", &["-D", "-c", "-f", &conf], folder);
        let node = slurm.node.clone();
        slurm.daemon("slurmd", &["-D", "-f", &conf, "-N", &node], folder);
        while !slurm.state().contains("State=IDLE") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(slurm)
    }

    fn daemon(&mut self, name: &str, arguments: &[&str], folder: &Path) {
        let log = std::fs::File::create(folder.join(format!("{name}.out"))).unwrap();
        let mut command = Command::new(program(name).unwrap());
        command.args(arguments).env("SLURM_CONF", &self.conf).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// The node's state, as Slurm reports it.
    pub fn state(&self) -> String {
        let mut command = Command::new(program("scontrol").unwrap());
        command.args(["show", "node", &self.node]).env("SLURM_CONF", &self.conf);
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }

    /// Points a command to this cluster.
    pub fn for_command(&self, command: &mut Command) {
        command.env("SLURM_CONF", &self.conf);
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // SIGTERM stops the daemons, munged last.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let until = Instant::now() + Duration::from_secs(5);
            while daemon.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
