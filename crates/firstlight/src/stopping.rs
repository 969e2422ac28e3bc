//! Handles Ctrl-C: incomplete files are removed before the command exits. In a chat it stops an answer.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
#[cfg(unix)]
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(unix)]
use std::time::Duration;

/// Sets a flag on Ctrl-C, which then does not end the process.
pub(crate) fn on_interrupt(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    handles(&[signal_hook::consts::SIGINT]);
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(stop))?;
    #[cfg(not(unix))]
    let _ = stop;
    Ok(())
}

/// Signals within this time count as one: timeout(1) signals the process and the process group.
#[cfg(unix)]
const ONE_SIGNAL: Duration = Duration::from_secs(1);
#[cfg(unix)]
const LOOK: Duration = Duration::from_millis(20);

/// Sets a flag on the first signal to stop; a later second signal ends the process at once.
pub(crate) fn on_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        use signal_hook::flag::{register, register_conditional_shutdown};
        let again = Arc::new(AtomicBool::new(false));
        handles(&[SIGHUP, SIGINT, SIGTERM]);
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            register(signal, Arc::clone(stop))?;
        }
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            std::thread::sleep(ONE_SIGNAL);
            again.store(true, Ordering::Relaxed);
        });
    }
    #[cfg(not(unix))]
    let _ = stop;
    Ok(())
}

/// Prints a sentence and ends the process on a signal to stop.
pub(crate) fn print_on_signals(
    sentence: impl FnOnce() -> String + Send + 'static,
) -> io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        handles(&[SIGHUP, SIGINT, SIGTERM]);
        let flags = [SIGHUP, SIGINT, SIGTERM].map(|signal| (signal, Arc::<AtomicBool>::default()));
        for (signal, flag) in &flags {
            signal_hook::flag::register_conditional_shutdown(
                *signal,
                128 + signal,
                Arc::clone(flag),
            )?;
            signal_hook::flag::register(*signal, Arc::clone(flag))?;
        }
        std::thread::spawn(move || {
            let came = |(_, flag): &&(i32, Arc<AtomicBool>)| flag.load(Ordering::Relaxed);
            let signal = loop {
                if let Some((signal, _)) = flags.iter().find(came) {
                    break *signal;
                }
                std::thread::sleep(LOOK);
            };
            // A progress bar's line ends first.
            eprintln!("\n{}", sentence());
            end_at_once(128 + signal);
        });
    }
    #[cfg(not(unix))]
    let _ = sentence;
    Ok(())
}

/// The sentence that a signal to stop prints now, and a file that it removes.
static SENTENCE: Mutex<Option<(String, Option<PathBuf>)>> = Mutex::new(None);
/// A bit for each signal that the command handles itself.
#[cfg(unix)]
static HANDLED: AtomicI32 = AtomicI32::new(0);

#[cfg(unix)]
fn handles(signals: &[i32]) {
    let bits = signals.iter().fold(0, |bits, signal| bits | 1 << signal);
    HANDLED.fetch_or(bits, Ordering::Relaxed);
}

/// Until it is dropped, a signal to stop prints a sentence and ends the process. Afterwards signals have the effect that
/// they had before.
pub(crate) struct PrintOnSignals(());

impl PrintOnSignals {
    /// Also removes the file `leftover` on a signal.
    pub(crate) fn start(sentence: String, leftover: Option<PathBuf>) -> io::Result<Self> {
        *SENTENCE.lock().unwrap_or_else(PoisonError::into_inner) = Some((sentence, leftover));
        #[cfg(unix)]
        {
            use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
            let flags =
                [SIGHUP, SIGINT, SIGTERM].map(|signal| (signal, Arc::<AtomicBool>::default()));
            for (signal, flag) in &flags {
                signal_hook::flag::register(*signal, Arc::clone(flag))?;
            }
            std::thread::spawn(move || {
                loop {
                    for (signal, flag) in &flags {
                        if flag.swap(false, Ordering::Relaxed) {
                            receive(*signal);
                        }
                    }
                    std::thread::sleep(LOOK);
                }
            });
        }
        Ok(Self(()))
    }
}

impl Drop for PrintOnSignals {
    fn drop(&mut self) {
        *SENTENCE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Prints the current sentence and ends the process. Without one, the signal's default action follows, unless the command
/// handles it: signal-hook does not restore the default action.
#[cfg(unix)]
fn receive(signal: i32) {
    let sentence = SENTENCE.lock().unwrap_or_else(PoisonError::into_inner).take();
    match sentence {
        Some((sentence, leftover)) => {
            // It may not exist yet.
            let _ = leftover.map(std::fs::remove_file);
            // A progress bar's line ends first.
            let bar = if io::IsTerminal::is_terminal(&io::stderr()) { "\n" } else { "" };
            eprintln!("{bar}{sentence}");
            end_at_once(128 + signal);
        }
        None if HANDLED.load(Ordering::Relaxed) & (1 << signal) != 0 => {}
        None => drop(signal_hook::low_level::emulate_default_handler(signal)),
    }
}

/// Ignores the signals that ask a process to stop.
pub(crate) fn not_by_signals() -> io::Result<()> {
    #[cfg(unix)]
    handles(&[
        signal_hook::consts::SIGHUP,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
    ]);
    #[cfg(unix)]
    for signal in
        [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM]
    {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Ends this process immediately. An orderly exit would make the driver wait for its GPU, which may wait for a lost
/// rank.
pub(crate) fn end_at_once(status: i32) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(status);
    #[cfg(not(unix))]
    std::process::exit(status)
}
