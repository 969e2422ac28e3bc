//! A folder and a shell for the commands of one page.

use super::block::Block;
use super::needs;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The home folder that the pages show. The real one has a name of the same length, so that lines wrap alike.
const SHOWN_HOME: &str = "/home/you";
/// The port that the pages show; the real one is free.
const SHOWN_PORT: &str = ":8000";
/// Parses the program that is its argument.
const PARSE: &str = "import ast, sys; ast.parse(sys.argv[1])";
/// Variables that reach the commands: how this machine gets to the network.
const NETWORK: [&str; 7] =
    ["http_proxy", "https_proxy", "no_proxy", "pip_", "uv_", "ssl_cert_", "hf_endpoint"];

pub struct Shell {
    home: PathBuf,
    port: u16,
    server: Option<Server>,
    last: i32,
}

/// A command that runs until the next server, or the page, ends it.
struct Server {
    child: Child,
    log: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.server = None;
        let _ = fs::remove_dir_all(&self.home);
    }
}

impl Shell {
    pub fn new() -> std::io::Result<Self> {
        let home = unique_home()?;
        let bin = home.join(".bin");
        fs::create_dir_all(home.join("project"))?;
        fs::create_dir_all(&bin)?;
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_firstlight"), bin.join("firstlight"))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        Ok(Self { home, port, server: None, last: 0 })
    }

    /// Makes programs of the caller's PATH known to the page.
    pub fn provide(&self, program: &str) -> std::io::Result<()> {
        let link = self.home.join(".bin").join(program);
        match needs::found(program) {
            Some(path) if !link.exists() => std::os::unix::fs::symlink(path, link),
            _ => Ok(()),
        }
    }

    /// Runs a command to its end: its status, and standard output and error as a terminal would show them.
    pub fn run(&mut self, text: &str, limit: Duration) -> std::io::Result<(i32, Vec<String>)> {
        let log = self.home.join(".log");
        let script = format!("(exit {})\n{}", self.last, self.real(text));
        let mut child = self.command(&script, &log)?.spawn()?;
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status.code().unwrap_or(-1);
            }
            if Instant::now() > end {
                signal(&child, "KILL");
                child.wait()?;
                return Ok((-1, vec![format!("still running after {limit:?}")]));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.last = status;
        Ok((status, self.shown(&log)?))
    }

    /// Runs a program in Python.
    pub fn python(
        &mut self,
        interpreter: &str,
        lines: &[String],
    ) -> std::io::Result<(i32, Vec<String>)> {
        let path = self.home.join("program.py");
        fs::write(&path, self.real(&lines.join("\n")))?;
        self.run(&format!("{interpreter} {}", path.display()), Duration::from_secs(60))
    }

    /// Whether bash or Python parses a block that is not run. The tests of `cli/help.rs` parse its calls of firstlight.
    pub fn syntax(&self, block: &Block) -> std::io::Result<Result<(), String>> {
        let mut command;
        if block.language == "python" {
            command = Command::new("python3");
            command.args(["-c", PARSE]).arg(block.lines.join("\n"));
        } else {
            let commands = block.commands().into_iter().map(|command| command.text);
            command = Command::new("bash");
            command.arg("-nc").arg(commands.collect::<Vec<_>>().join("\n"));
        }
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(if output.status.success() { Ok(()) } else { Err(said) })
    }

    /// Starts a server and waits until it is healthy; what it printed, if it is not.
    pub fn serve(&mut self, text: &str) -> std::io::Result<Result<(), Vec<String>>> {
        let log = self.home.join(".server");
        let port = format!("firstlight serve --port {}", self.port);
        let text = match text.contains("--port") {
            true => text.to_owned(),
            false => text.replacen("firstlight serve", &port, 1),
        };
        // The shell's process becomes the server, which then gets the signal alone.
        let script = format!("exec env {}", self.real(&text));
        let child = self.command(&script, &log)?.spawn()?;
        let server = self.server.insert(Server { child, log: log.clone() });
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end && server.child.try_wait()?.is_none() {
            if healthy(self.port) {
                return Ok(Ok(()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let printed = self.shown(&log)?;
        Ok(Err(printed))
    }

    /// Ends the server with SIGTERM: its status and all that it printed.
    pub fn stop(&mut self) -> std::io::Result<Option<(i32, Vec<String>)>> {
        let Some(mut server) = self.server.take() else { return Ok(None) };
        signal(&server.child, "TERM");
        let status = server.child.wait()?.code().unwrap_or(-1);
        let log = server.log.clone();
        self.shown(&log).map(|lines| Some((status, lines)))
    }

    fn command(&self, script: &str, log: &Path) -> std::io::Result<Command> {
        let out = File::create(log)?;
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(self.home.join("project")).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.home.join(".bin").display()));
        command.env("HOME", &self.home).env("TERM", "dumb").env("LANG", "C.UTF-8");
        command.envs(network()).stdin(Stdio::null()).process_group(0);
        if let Some(python) = std::env::var_os(needs::OPENAI) {
            command.env(needs::OPENAI, python);
        }
        command.stderr(out.try_clone()?).stdout(out);
        Ok(command)
    }

    fn real(&self, text: &str) -> String {
        let home = self.home.display().to_string();
        text.replace(SHOWN_HOME, &home).replace(SHOWN_PORT, &format!(":{}", self.port))
    }

    fn shown(&self, log: &Path) -> std::io::Result<Vec<String>> {
        let mut text = String::new();
        File::open(log)?.read_to_string(&mut text)?;
        let home = self.home.display().to_string();
        let text = text.replace(&home, SHOWN_HOME).replace(&format!(":{}", self.port), SHOWN_PORT);
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// A new folder, with a name as long as the one that the pages show.
fn unique_home() -> std::io::Result<PathBuf> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut seed = std::process::id().wrapping_add(now.map_or(0, |it| it.subsec_nanos()));
    for _ in 0..1000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let home = PathBuf::from(format!("/tmp/{:04x}", seed >> 16));
        assert_eq!(home.as_os_str().len(), SHOWN_HOME.len());
        match fs::create_dir(&home) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| home),
        }
    }
    Err(std::io::Error::other("no free name in /tmp"))
}

fn network() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy().to_lowercase();
        NETWORK.iter().any(|it| name.starts_with(it))
    })
}

/// Sends a signal to the process group of `child`.
fn signal(child: &Child, name: &str) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-s", name, "--", &group]).status();
}

fn healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.split(' ').nth(1) == Some("200"))
}
