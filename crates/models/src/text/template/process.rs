//! Renders templates in separate processes.
//!
//! A template is a program that came with a model. minijinja counts instructions, but one instruction may double a
//! string or compare two lists that contain themselves. A process has a memory limit and a deadline, and its stack
//! overflow affects no other process. Processes are reused for later conversations; after a large conversation a
//! process ends, which frees its memory.

use super::wire::{self, Reply};
use super::{ChatTemplate, Conversation};
use crate::ModelError;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// CPU seconds per conversation.
const CPU_SECONDS: f64 = 2.0;
/// Wall-clock limit, for when other processes keep the cores busy.
const DEADLINE: Duration = Duration::from_secs(20);
/// CPU seconds after which the rendering thread lowers its priority. Wall time does not count: it would demote small conversations that
/// wait for slow ones.
const QUICK_SECONDS: f64 = 0.05;
/// Maximum bytes that a process may allocate.
const MEMORY: u64 = 256 << 20;
/// Bytes that the rendering of a conversation may allocate, whatever its size, and for each byte of the conversation.
const MEMORY_FOR_RENDERING: u64 = 20 << 20;
const MEMORY_PER_BYTE: u64 = 16;
/// Maximum size of a rendered text.
const LONGEST: usize = 64 << 20;
/// Maximum conversations rendered at the same time. One thread of the caller waits for each.
pub const MAX_CONCURRENT_RENDERS: usize = 64;
/// Maximum number of them that have used more than [`SLOW_SECONDS`] of CPU time; one more is refused.
const MAX_SLOW: usize = 4;
const SLOW_SECONDS: f64 = 0.3;
/// Idle processes kept for later conversations.
const IDLE: usize = 8;
/// Size of a conversation after which its process ends.
const LARGE: usize = 1 << 20;
const STACK: usize = 16 << 20;

/// How to start a process that renders a model's templates; the model's path is appended to the arguments.
#[derive(Debug, Clone)]
pub struct TemplateProcess {
    /// The program.
    pub program: PathBuf,
    /// The arguments that make it call [`render_templates`].
    pub arguments: Vec<String>,
}

/// Processes that render one model's templates.
#[derive(Debug)]
pub(super) struct Pool {
    start: TemplateProcess,
    model: PathBuf,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Worker>,
    running: usize,
    slow: usize,
}

#[derive(Debug)]
struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(start: &TemplateProcess, model: &Path) -> std::io::Result<Self> {
        let mut command = Command::new(&start.program);
        command.args(&start.arguments).arg(model);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let output = child.stdout.take();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let all = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for line in all.map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// The answer to a line. The error names the exceeded limit; `may_be_slow` is called once when rendering takes
    /// long.
    fn ask(&mut self, line: &str, may_be_slow: impl FnOnce() -> bool) -> Result<String, String> {
        let (began, cpu) = (Instant::now(), cpu_seconds(self.child.id()));
        let input = self.child.stdin.as_mut();
        // A write error means that the process has ended, which reading the answer detects.
        let _ = input.map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        let mut may_be_slow = Some(may_be_slow);
        loop {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => {
                    let memory = memory_for(line.len()) >> 20;
                    return Err(format!("{memory} MB of memory, or nests too deeply"));
                }
                Err(RecvTimeoutError::Timeout) if began.elapsed() > DEADLINE => {
                    return Err(format!("{} seconds", DEADLINE.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let spent = cpu_seconds(self.child.id()).zip(cpu).map(|(now, then)| now - then);
            let is_slow = spent.unwrap_or_else(|| began.elapsed().as_secs_f64()) > SLOW_SECONDS;
            if is_slow && may_be_slow.take().is_some_and(|may_be_slow| !may_be_slow()) {
                return Err(format!(
                    "{SLOW_SECONDS} seconds while {MAX_SLOW} other conversations do"
                ));
            }
        }
    }
}

impl Pool {
    pub(super) fn new(start: TemplateProcess, model: &Path) -> Self {
        let (state, done) = (Mutex::default(), Condvar::new());
        Self { start, model: model.to_owned(), state, done }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// The problem, and what to do about it.
    pub(super) fn render(&self, conversation: &Conversation) -> Result<String, (String, String)> {
        let spent = |what: String| {
            let hint =
                "the conversation is too long for this chat template, or the template does not end";
            (format!("the template needs more than {what}"), hint.to_owned())
        };
        let line = wire::write(conversation);
        let mut worker = self.take().map_err(|error| {
            let hint = "firstlight renders templates in a separate process of the same program";
            (format!("no process renders the template: {error}"), hint.to_owned())
        })?;
        let mut is_slow = false;
        let answer = worker.ask(&line, || {
            let mut state = self.state();
            is_slow = state.slow < MAX_SLOW;
            state.slow += usize::from(is_slow);
            is_slow
        });
        self.state().slow -= usize::from(is_slow);
        let reply = answer.as_deref().ok().map(serde_json::from_str::<Reply>);
        let reusable = !matches!(reply, None | Some(Err(_) | Ok(Reply::Spent(_))));
        let size = line.len() + answer.as_ref().map_or(0, String::len);
        self.put_back(Some(worker).filter(|_| reusable && size < LARGE));
        match reply {
            Some(Ok(Reply::Text(text))) => Ok(text),
            Some(Ok(Reply::Wrong(what, hint))) => Err((what, hint)),
            Some(Ok(Reply::Spent(what))) => Err(spent(what)),
            Some(Err(error)) => Err(spent(error.to_string())),
            None => Err(spent(answer.err().unwrap_or_default())),
        }
    }

    fn take(&self) -> std::io::Result<Worker> {
        let idle = {
            let mut state = self.state();
            while state.running >= MAX_CONCURRENT_RENDERS {
                state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.running += 1;
            state.idle.pop()
        };
        let living = idle.and_then(|mut worker| {
            let ended = matches!(worker.child.try_wait(), Ok(Some(_)));
            (!ended).then_some(worker)
        });
        match living.map_or_else(|| Worker::start(&self.start, &self.model), Ok) {
            Ok(worker) => Ok(worker),
            Err(error) => {
                self.put_back(None);
                Err(error)
            }
        }
    }

    fn put_back(&self, worker: Option<Worker>) {
        let mut state = self.state();
        state.running -= 1;
        let surplus = match worker {
            Some(worker) if state.idle.len() < IDLE => {
                state.idle.push(worker);
                None
            }
            other => other,
        };
        drop(state);
        self.done.notify_one();
        drop(surplus);
    }
}

/// Renders a model's templates for another process until its input ends: one conversation per line, one answer per
/// line.
///
/// # Errors
/// When the model has no template, or a stream breaks.
pub fn render_templates(
    model: &Path,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), ModelError> {
    limit_memory();
    let template = ChatTemplate::read(model)?;
    let broken = |error: std::io::Error| ModelError::file(Path::new("standard input"), error);
    for line in input.lines() {
        let line = line.map_err(broken)?;
        allow_memory(memory_for(line.len()));
        let reply = match within_budget(&template, &line) {
            Reply::Text(text) if text.len() > LONGEST => {
                Reply::Spent(format!("{} MB of text", LONGEST >> 20))
            }
            reply => reply,
        };
        let text = serde_json::to_string(&reply).unwrap_or_default();
        writeln!(output, "{text}").and_then(|()| output.flush()).map_err(broken)?;
        if matches!(reply, Reply::Spent(_)) {
            break;
        }
    }
    Ok(())
}

/// Renders on a separate thread, which is abandoned when it exceeds the limit: then the process ends.
fn within_budget(template: &ChatTemplate, line: &str) -> Reply {
    let conversation = match wire::read(line) {
        Ok(conversation) => conversation,
        Err(error) => return Reply::Wrong(error, String::new()),
    };
    // The scope does not outlive the limit: if the thread does not end, the process does.
    std::thread::scope(|scope| {
        let (send, rendered) = channel();
        let (tell, thread) = channel();
        let render = move || {
            let _ = tell.send(this_thread());
            let _ = send.send(template.render(&conversation));
        };
        let spawned = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, render);
        if let Err(error) = spawned {
            return Reply::Wrong(error.to_string(), String::new());
        }
        let (began, cpu) = (Instant::now(), own_cpu_seconds());
        let mut is_quick = true;
        loop {
            match rendered.recv_timeout(Duration::from_millis(10)) {
                Ok(Ok(text)) => return Reply::Text(text),
                Ok(Err(ModelError::Template { what, hint, .. })) => {
                    return Reply::Wrong(what, hint);
                }
                Ok(Err(error)) => return Reply::Wrong(error.to_string(), String::new()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Reply::Wrong(
                        "the template cannot be rendered".to_owned(),
                        String::new(),
                    );
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let spent = own_cpu_seconds().zip(cpu).map(|(now, then)| now - then);
            let spent = spent.unwrap_or_else(|| began.elapsed().as_secs_f64());
            if is_quick && spent > QUICK_SECONDS {
                is_quick = false;
                thread.try_recv().ok().into_iter().for_each(lower_priority);
            }
            if spent > CPU_SECONDS {
                end_spent();
            }
        }
    })
}

/// Reports the exceeded limit and ends the process, because its thread cannot be ended.
fn end_spent() -> ! {
    let reply = Reply::Spent(format!("{CPU_SECONDS} seconds"));
    let text = serde_json::to_string(&reply).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    std::process::exit(1)
}

#[cfg(target_os = "linux")]
fn this_thread() -> Option<rustix::process::Pid> {
    Some(rustix::thread::gettid())
}

#[cfg(not(target_os = "linux"))]
fn this_thread() -> Option<()> {
    None
}

/// Lowers the thread's priority.
#[cfg(target_os = "linux")]
fn lower_priority(thread: Option<rustix::process::Pid>) {
    const LAST: i32 = 15;
    // On Linux priorities are per thread. If it cannot be changed, it stays.
    let _ = rustix::process::setpriority_process(thread, LAST);
}

#[cfg(not(target_os = "linux"))]
fn lower_priority(_: Option<()>) {}

/// CPU seconds of this process, where the system reports them.
#[cfg(unix)]
fn own_cpu_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(not(unix))]
fn own_cpu_seconds() -> Option<f64> {
    None
}

/// CPU seconds of a process, if the system reports them.
fn cpu_seconds(process: u32) -> Option<f64> {
    // Clock ticks per second on every Linux.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let field = |at: usize| fields.split(' ').nth(at)?.parse::<f64>().ok();
    Some((field(11)? + field(12)?) / TICKS)
}

/// Bytes that rendering a conversation of `conversation` bytes may allocate.
fn memory_for(conversation: usize) -> u64 {
    (MEMORY_FOR_RENDERING + MEMORY_PER_BYTE * conversation as u64).min(MEMORY)
}

/// Limits this process to `bytes` in addition to its current memory and the stack of the rendering thread.
fn allow_memory(bytes: u64) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kilobytes = status.lines().find_map(|line| {
            line.strip_prefix("VmData:")?.trim().trim_end_matches(" kB").parse::<u64>().ok()
        });
        let Some(kilobytes) = kilobytes else { return };
        let maximum = getrlimit(Resource::Data).maximum;
        let wanted = (kilobytes << 10) + STACK as u64 + bytes;
        let current = Some(maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(Resource::Data, Rlimit { current, maximum });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Bounds what this process may allocate, and writes no image of it when that is too little.
fn limit_memory() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // An existing lower limit stays. Systems without these limits are left alone.
        for (resource, most) in [(Resource::Data, MEMORY), (Resource::Core, 0)] {
            let allowed = getrlimit(resource).maximum.unwrap_or(u64::MAX).min(most);
            let limit = Rlimit { current: Some(allowed), maximum: Some(allowed) };
            let _ = setrlimit(resource, limit);
        }
    }
}
