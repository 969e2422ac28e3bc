//! Handles Ctrl-C: incomplete files are removed before the command exits. In a chat it stops an answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(unix)]
use std::sync::atomic::Ordering;
#[cfg(unix)]
use std::time::Duration;

/// Sets a flag on Ctrl-C, which then does not end the process.
pub(crate) fn on_interrupt(stop: &Arc<AtomicBool>) -> io::Result<()> {
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

/// Ignores the signals that ask a process to stop.
pub(crate) fn not_by_signals() -> io::Result<()> {
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
