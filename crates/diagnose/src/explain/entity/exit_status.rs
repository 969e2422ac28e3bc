//! Processes that a signal ended: the signal's meaning, and the causes that it leaves possible.

use super::super::cause::Cause;
use super::{Entity, Form, form};
use crate::host;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("exits with return code = -{status}", negative),
        form("exitcode: -{status}", negative),
        form("exit code: -{status}", negative),
        form("exit code -{status}", negative),
        form("exit status -{status}", negative),
        form("returned non-zero exit status -{status}", negative),
        form("exited with code -{status}", negative),
        form("exited with code {status}", positive),
        form("exit code: {status}", positive),
        form("exit code {status}", positive),
        form("exit status: {status}", positive),
        form("exit status {status}", positive),
        form("exitcode: {status}", positive),
        form("exits with return code = {status}", positive),
        form("died with <Signals.{name}: {status}>", named),
        form("Signal {status} ({name}) received by PID", named),
        form("is killed by signal: {words}", worded),
        form("terminated by signal {status}", negative),
        form("terminated with signal {status}", negative),
        form("signaled to shutdown with signal {status}", negative),
        form("exited on signal {status}", negative),
        form("exited due to signal {status}", negative),
        form("killed by signal {status}", negative),
        form("caught signal {status} (", negative),
        form("fatal signal {status} (", negative),
        form("Segmentation fault", segmentation),
        form("^Segfault$", segmentation),
        form("Bus error", bus),
        form("Fatal Python error: {words}", worded),
        form("Aborted (core dumped)", aborted),
    ]
}

/// A status that Python reports as a negative signal number; numbers such as `4294967295` are not signals.
fn negative(seen: &PastedError, _: &'static str) -> Option<Entity> {
    of_signal(seen, number(seen)?)
}

/// An exit status of a shell or a container: 128 plus the number of the signal.
fn positive(seen: &PastedError, _: &'static str) -> Option<Entity> {
    of_signal(seen, number(seen)?.checked_sub(128)?)
}

fn number(seen: &PastedError) -> Option<u32> {
    let word = seen.word("status")?;
    let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn named(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let by_number = number(seen);
    let name = seen.word("name").unwrap_or("");
    let row = SIGNALS.iter().find(|(_, known, _)| name.contains(known));
    of_signal(seen, row.map(|row| row.0).or(by_number)?)
}

fn worded(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let text = seen.word("words")?.to_ascii_lowercase();
    let row = SIGNALS.iter().find(|(_, name, words)| {
        text.contains(&name.to_ascii_lowercase()) || words.to_ascii_lowercase().starts_with(&text)
    })?;
    of_signal(seen, row.0)
}

fn segmentation(seen: &PastedError, _: &'static str) -> Option<Entity> {
    of_signal(seen, 11)
}

fn bus(seen: &PastedError, _: &'static str) -> Option<Entity> {
    of_signal(seen, 7)
}

fn aborted(seen: &PastedError, _: &'static str) -> Option<Entity> {
    of_signal(seen, 6)
}

/// Number, name and C library message of the Linux signals that end processes (signal(7), glibc's siglist).
const SIGNALS: [(u32, &str, &str); 9] = [
    (4, "SIGILL", "Illegal instruction"),
    (6, "SIGABRT", "Aborted"),
    (7, "SIGBUS", "Bus error"),
    (8, "SIGFPE", "Floating point exception"),
    (9, "SIGKILL", "Killed"),
    (11, "SIGSEGV", "Segmentation fault"),
    (13, "SIGPIPE", "Broken pipe"),
    (15, "SIGTERM", "Terminated"),
    (24, "SIGXCPU", "CPU time limit exceeded"),
];

fn of_signal(seen: &PastedError, number: u32) -> Option<Entity> {
    let (_, name, words) = SIGNALS.iter().find(|row| row.0 == number)?;
    let entity = Entity::new(super::EXIT_STATUS, format!("{name} ({number}): {words}"));
    let meaning = |by: &str| {
        format!(
            "A process ended by signal {number} ({name}), in a shell and in containers the exit status {}: {by}",
            128 + number
        )
    };
    let machine = seen.machine();
    let entity = match number {
        9 => entity
            .meaning(meaning("another process or the kernel killed it; it wrote no error message."))
            .causes([
                Cause::new("The memory of the host, or the limit of the container or job, ran out, and the kernel killed the process.")
                    .check([
                        "sudo dmesg | grep -iE 'out of memory|oom-kill|killed process' | tail",
                        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.events 2>/dev/null; free -h",
                    ])
                    .fix(["# less host memory: fewer workers and processes, no offloading to the CPU, weights as safetensors; or a larger limit"]),
                Cause::new("A scheduler, a launcher or a user ended it: a time limit, or another rank that failed first.")
                    .check(["sacct -j JOB --format=JobID,State,ExitCode,MaxRSS,ReqMem,Elapsed,Timelimit  # Slurm", "# the first error among the logs of all ranks"]),
            ]),
        7 => entity
            .meaning(meaning("it accessed mapped memory whose file or pages no longer exist."))
            .causes([
                Cause::new("/dev/shm is full or too small for shared tensors, NCCL's buffers or data loader workers: containers have 64 MiB by default.")
                    .check(["df -h /dev/shm"])
                    .fix(host::enlarge_shared_memory(machine)),
                Cause::new("A mapped file was cut off or replaced while it was read (a network file system, a full disk), or huge pages ran out.")
                    .check(["df -h; grep -i huge /proc/meminfo; sudo dmesg | tail"]),
            ]),
        11 => entity
            .meaning(meaning("native code accessed memory that is not its own."))
            .causes([
                Cause::new("A compiled extension was built for another torch, CUDA or Python, or two copies of one native library are loaded.")
                    .check(["firstlight doctor".to_owned(), format!("{} -X faulthandler your_program.py  # the last line names the call", seen.installer().python())])
                    .fix(["# the release of that extension for the installed torch"]),
                Cause::new("A fault in the native code of that release, in the driver or in NCCL.")
                    .check(["gdb -batch -ex run -ex bt --args python your_program.py 2>&1 | tail -40  # the library at the top", "sudo dmesg | grep -E 'segfault|NVRM|Xid' | tail"])
                    .fix(["# another release of the library at the top of the stack"]),
            ]),
        6 => entity
            .meaning(meaning("the program aborted itself: a failed assertion, an uncaught C++ exception or NCCL's watchdog, whose words are above."))
            .causes([
                Cause::new("An uncaught C++ exception or assertion: the lines with `terminate called`, `what():` or `Assertion` name it.")
                    .check(["grep -nE 'terminate called|what\\(\\):|Assertion|CHECK failed' LOG"]),
                Cause::new("NCCL's watchdog ended the process because a collective did not finish: another rank failed or is late.")
                    .check(["grep -nE 'Watchdog|ProcessGroupNCCL' LOG; # then the first error of the other ranks"]),
                Cause::new("Corrupted memory of the process: extensions of different builds, or a fault in native code.")
                    .check(["grep -nE 'double free|corrupted|free\\(\\): invalid' LOG", "firstlight doctor"]),
            ]),
        4 => entity
            .rule("illegal-instruction")
            .meaning(meaning("this processor does not have an instruction that the program uses.")),
        8 => entity
            .meaning(meaning("native code divided an integer by zero."))
            .causes([Cause::new("A fault in the native code of that release, or a size of zero that it was given.")
                .check([format!("{} -X faulthandler your_program.py", seen.installer().python())])]),
        15 => entity
            .meaning(meaning("another process asked it to end: a launcher after another rank failed, a scheduler's time limit, or a service manager."))
            .causes([
                Cause::new("Another rank or worker failed first, and the launcher ended the rest.")
                    .check(["# the first error among the logs of all ranks"]),
                Cause::new("A scheduler, a container's stop or a user ended it.")
                    .check(["sacct -j JOB --format=JobID,State,ExitCode,Elapsed,Timelimit  # Slurm; kubectl describe pod POD"]),
            ]),
        _ => entity.meaning(meaning("see signal(7).")),
    };
    Some(entity.rank(2))
}
