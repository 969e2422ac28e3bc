//! Signals that ask a command to stop: Ctrl-C (SIGINT), SIGTERM and SIGHUP. One thread receives all of them, and does what
//! the command chose.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(unix)]
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Sets a flag on Ctrl-C, which then does not end the process.
pub(crate) fn on_interrupt(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    watch(SignalAction::Interrupt(Arc::clone(stop)), &[SIGINT])?;
    #[cfg(not(unix))]
    let _ = stop;
    Ok(())
}

/// Sets a flag on the first signal to stop; a second signal ends the process at once.
pub(crate) fn on_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    watch(SignalAction::Stop { flag: Arc::clone(stop), received: false }, &STOPS)?;
    #[cfg(not(unix))]
    let _ = stop;
    Ok(())
}

/// Prints a sentence and ends the process on a signal to stop. A second signal does not wait for the sentence.
pub(crate) fn print_on_signals(
    sentence: impl FnOnce() -> String + Send + 'static,
) -> io::Result<()> {
    #[cfg(unix)]
    watch(SignalAction::Print(Box::new(sentence)), &STOPS)?;
    #[cfg(not(unix))]
    let _ = sentence;
    Ok(())
}

/// Ignores the signals that ask a process to stop.
pub(crate) fn not_by_signals() -> io::Result<()> {
    #[cfg(unix)]
    watch(SignalAction::Ignore, &STOPS)?;
    Ok(())
}

/// Until it is dropped, a signal to stop prints a sentence and ends the process. Afterwards signals have the effect that
/// they had before.
pub(crate) struct PrintOnSignals(());

impl PrintOnSignals {
    /// Also removes the file `leftover` on a signal.
    pub(crate) fn start(sentence: String, leftover: Option<PathBuf>) -> io::Result<Self> {
        #[cfg(unix)]
        register(&STOPS)?;
        state().sentence = Some((sentence, leftover));
        Ok(Self(()))
    }
}

impl Drop for PrintOnSignals {
    fn drop(&mut self) {
        state().sentence = None;
    }
}

/// A command's action on a signal.
#[cfg_attr(not(unix), allow(dead_code))]
enum SignalAction {
    /// Sets a flag; a second signal ends the process.
    Stop {
        flag: Arc<AtomicBool>,
        /// Whether the first signal was received.
        received: bool,
    },
    /// Sets a flag on every Ctrl-C.
    Interrupt(Arc<AtomicBool>),
    /// Prints a sentence and ends the process.
    Print(Box<dyn FnOnce() -> String + Send>),
    Ignore,
}

struct SignalState {
    action: Option<SignalAction>,
    /// The sentence of [`PrintOnSignals`], which precedes the action, and a file that is removed.
    sentence: Option<(String, Option<PathBuf>)>,
    /// The watched signals. A handler sets the flag of its signal and then wakes the thread through the socket.
    #[cfg(unix)]
    watched: Vec<(i32, Arc<AtomicBool>)>,
    #[cfg(unix)]
    wake: Option<std::os::unix::net::UnixStream>,
}

static STATE: Mutex<SignalState> = Mutex::new(SignalState {
    action: None,
    sentence: None,
    #[cfg(unix)]
    watched: Vec::new(),
    #[cfg(unix)]
    wake: None,
});

fn state() -> MutexGuard<'static, SignalState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
const STOPS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Signals within this time after the first one count as one: timeout(1) signals the process and then its process group.
/// It is shorter than the time between two presses of Ctrl-C.
#[cfg_attr(not(unix), allow(dead_code))]
const ONE_SIGNAL: Duration = Duration::from_millis(30);

#[cfg(unix)]
fn watch(action: SignalAction, signals: &[i32]) -> io::Result<()> {
    state().action = Some(action);
    register(signals)
}

/// Lets the thread receive these signals; the first call starts it.
#[cfg(unix)]
fn register(signals: &[i32]) -> io::Result<()> {
    let mut state = state();
    if state.wake.is_none() {
        let (wake, woken) = std::os::unix::net::UnixStream::pair()?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || receive_all(woken))?;
        state.wake = Some(wake);
    }
    let SignalState { watched, wake: Some(wake), .. } = &mut *state else { return Ok(()) };
    for signal in signals {
        if watched.iter().any(|(known, _)| known == signal) {
            continue;
        }
        let flag = Arc::<AtomicBool>::default();
        // Handlers of a signal run in this order.
        signal_hook::flag::register(*signal, Arc::clone(&flag))?;
        signal_hook::low_level::pipe::register(*signal, wake.try_clone()?)?;
        watched.push((*signal, flag));
    }
    Ok(())
}

#[cfg(unix)]
fn receive_all(mut woken: std::os::unix::net::UnixStream) {
    use std::io::Read;
    let mut bytes = [0; 64];
    loop {
        match woken.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        let came = |(signal, flag): &(i32, Arc<AtomicBool>)| {
            flag.swap(false, Ordering::Relaxed).then_some(*signal)
        };
        let signals: Vec<i32> = state().watched.iter().filter_map(came).collect();
        let mut is_first = false;
        signals.into_iter().for_each(|signal| receive(signal, &mut is_first));
        if is_first {
            std::thread::sleep(ONE_SIGNAL);
            state().watched.iter().for_each(|(_, flag)| flag.store(false, Ordering::Relaxed));
        }
    }
}

/// `is_first`: whether these signals are the first request to stop.
#[cfg(unix)]
fn receive(signal: i32, is_first: &mut bool) {
    let mut state = state();
    if let Some((sentence, leftover)) = state.sentence.take() {
        // It may not exist yet.
        let _ = leftover.map(std::fs::remove_file);
        // A progress bar's line ends first.
        let bar = if io::IsTerminal::is_terminal(&io::stderr()) { "\n" } else { "" };
        eprintln!("{bar}{sentence}");
        end_at_once(128 + signal);
    }
    match state.action.take() {
        Some(SignalAction::Stop { flag, received }) => {
            if received && !*is_first {
                end_at_once(128 + signal);
            }
            *is_first = true;
            flag.store(true, Ordering::Relaxed);
            state.action = Some(SignalAction::Stop { flag, received: true });
        }
        Some(SignalAction::Print(sentence)) => {
            *is_first = true;
            state.action = Some(SignalAction::Stop { flag: Arc::default(), received: true });
            std::thread::spawn(move || {
                // A progress bar's line ends first.
                eprintln!("\n{}", sentence());
                end_at_once(128 + signal);
            });
        }
        Some(SignalAction::Interrupt(flag)) if signal == SIGINT => {
            flag.store(true, Ordering::Relaxed);
            state.action = Some(SignalAction::Interrupt(flag));
        }
        Some(SignalAction::Ignore) => state.action = Some(SignalAction::Ignore),
        // signal-hook does not restore the default action.
        other => {
            state.action = other;
            drop(signal_hook::low_level::emulate_default_handler(signal));
        }
    }
}

/// Ends this process immediately. An orderly exit would make the driver wait for its GPU, which may wait for a lost
/// rank.
pub(crate) fn end_at_once(status: i32) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(status);
    #[cfg(not(unix))]
    std::process::exit(status)
}
