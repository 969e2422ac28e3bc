//! Ctrl-C while something is written: what is half-made is removed before the command ends. In a conversation it ends an answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Sets a flag at Ctrl-C, which then does not end the process.
pub(crate) fn on_interrupt(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(stop))?;
    #[cfg(not(unix))]
    let _ = stop;
    Ok(())
}

/// Sets a flag once the process is asked to end; asked again, it ends at once.
pub(crate) fn on_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        use signal_hook::flag::{register, register_conditional_shutdown};
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            // Behind the flag of the first signal, the next one ends the process as it would have.
            register_conditional_shutdown(signal, 128 + signal, Arc::clone(stop))?;
            register(signal, Arc::clone(stop))?;
        }
    }
    #[cfg(not(unix))]
    let _ = stop;
    Ok(())
}

/// Lets no signal that asks a process to end do so.
pub(crate) fn not_by_signals() -> io::Result<()> {
    #[cfg(unix)]
    for signal in
        [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM]
    {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Ends this process at once. An orderly end would have the driver wait for its GPU, which may wait for a rank that is gone.
pub(crate) fn end_at_once(status: i32) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(status);
    #[cfg(not(unix))]
    std::process::exit(status)
}
