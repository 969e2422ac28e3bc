//! Templates that are rendered in processes of their own.
//!
//! A template is a program that came with a model. The engine that runs it counts instructions, but one instruction may double a string
//! or compare two lists that contain themselves: a process has a limit of memory, a deadline, and takes nobody with it when its stack
//! overflows. Processes wait for the next conversation; one that had a large conversation ends, which gives its memory back.

use super::wire::{self, Reply};
use super::{ChatTemplate, Conversation};
use crate::ModelError;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Seconds of a core that a conversation may take.
const CPU_SECONDS: f64 = 2.0;
/// How long it may take where other processes keep the cores busy.
const DEADLINE: Duration = Duration::from_secs(20);
/// After this, other processes go first.
const QUICK: Duration = Duration::from_millis(200);
/// Bytes that a process may allocate.
const MEMORY: u64 = 256 << 20;
/// Longest text that a template may make.
const LONGEST: usize = 64 << 20;
/// Conversations that are rendered at the same time.
const MOST: usize = 64;
/// Conversations among them that have taken more than [`SLOW_SECONDS`] of a core; one more is refused.
const MOST_SLOW: usize = 4;
const SLOW_SECONDS: f64 = 0.3;
/// Processes that wait for the next conversation.
const IDLE: usize = 8;
/// Bytes of a conversation after which its process ends.
const LARGE: usize = 1 << 20;
const STACK: usize = 16 << 20;

/// How a process is started that renders the templates of a model, which is named after the arguments.
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

    /// The answer to a line. The error is what the conversation took too much of; `may_be_slow` is asked once when it takes long.
    fn ask(&mut self, line: &str, may_be_slow: impl FnOnce() -> bool) -> Result<String, String> {
        let (began, cpu) = (Instant::now(), cpu_seconds(self.child.id()));
        let input = self.child.stdin.as_mut();
        // A process that is gone is seen by the answer that does not come.
        let _ = input.map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        let mut may_be_slow = Some(may_be_slow);
        loop {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("{} MB of memory, or nests too deeply", MEMORY >> 20));
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
                    "{SLOW_SECONDS} seconds while {MOST_SLOW} other conversations do"
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
            let hint = "firstlight renders templates in processes of its own program";
            (format!("no process renders the template: {error}"), hint.to_owned())
        })?;
        let mut is_slow = false;
        let answer = worker.ask(&line, || {
            let mut state = self.state();
            is_slow = state.slow < MOST_SLOW;
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
            while state.running >= MOST {
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

/// Renders a model's templates for another process until its input ends: a conversation a line, and an answer a line.
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

/// Renders on a thread of its own, which is left alone when it takes too long: the process ends then.
fn within_budget(template: &ChatTemplate, line: &str) -> Reply {
    let conversation = match wire::read(line) {
        Ok(conversation) => conversation,
        Err(error) => return Reply::Wrong(error, String::new()),
    };
    // The template outlives the thread: when it does not end, the process does.
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
        let own = std::process::id();
        let (began, cpu) = (Instant::now(), cpu_seconds(own));
        let mut is_quick = true;
        loop {
            match rendered.recv_timeout(Duration::from_millis(50)) {
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
            if is_quick && began.elapsed() > QUICK {
                is_quick = false;
                thread.try_recv().ok().into_iter().for_each(step_back);
            }
            let spent = cpu_seconds(own).zip(cpu).map(|(now, then)| now - then);
            if spent.unwrap_or_else(|| began.elapsed().as_secs_f64()) > CPU_SECONDS {
                end_spent();
            }
        }
    })
}

/// Tells that the time is over and ends the process, whose thread cannot be ended.
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

/// Lets other threads of the machine go first.
#[cfg(target_os = "linux")]
fn step_back(thread: Option<rustix::process::Pid>) {
    const LAST: i32 = 15;
    // On Linux a priority is a thread's. Where it cannot be changed, it stays.
    let _ = rustix::process::setpriority_process(thread, LAST);
}

#[cfg(not(target_os = "linux"))]
fn step_back(_: Option<()>) {}

/// Seconds of cores that a process has had, where the system tells.
fn cpu_seconds(process: u32) -> Option<f64> {
    // Hundredths of seconds on every Linux.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let field = |at: usize| fields.split(' ').nth(at)?.parse::<f64>().ok();
    Some((field(11)? + field(12)?) / TICKS)
}

/// Bounds what this process may allocate, and writes no image of it when that is too little.
fn limit_memory() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // Less where less was allowed already. A system without these limits has none.
        for (resource, most) in [(Resource::Data, MEMORY), (Resource::Core, 0)] {
            let allowed = getrlimit(resource).maximum.unwrap_or(u64::MAX).min(most);
            let limit = Rlimit { current: Some(allowed), maximum: Some(allowed) };
            let _ = setrlimit(resource, limit);
        }
    }
}
