//! The server itself: connections in, and an orderly end.

use crate::app::{App, Settings, Texts};
use crate::connection::Connection;
use crate::log::Record;
use crate::routes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serving::{Phase, Service};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// How often a look is taken at whether the server is to stop.
const TICK: Duration = Duration::from_millis(25);

/// How long a connection may take to send the head of a request, or be idle between two.
const HEAD: Duration = Duration::from_secs(30);

/// How long connections may take to send what they still have to, behind the last answer.
const FLUSH: Duration = Duration::from_secs(5);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The engine's thread has ended, and tells how.
    Over,
    /// The server was asked to stop while the model was loading, which its thread still is.
    WhileLoading,
}

/// Answers on a socket until `stop` is set and what was open has ended, or the service has failed.
///
/// # Errors
/// When the system gives no threads or does not accept the socket.
pub fn serve(
    socket: std::net::TcpListener,
    service: Service,
    (texts, settings): (Texts, Settings),
    stop: &Arc<AtomicBool>,
) -> io::Result<Ended> {
    // The engine has cores of its own to keep busy.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
    let threads = threads.clamp(1, 8);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        // Long texts become tokens on these; more at once would take cores from the engine.
        .max_blocking_threads(threads + 1)
        .thread_name("api")
        .enable_io()
        .enable_time()
        .build()?;
    let app = Arc::new(App::new(service, texts, settings));
    let served = runtime.block_on(run(socket, &app, stop));
    // A text of a request that nobody waits for may still be read.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn run(
    socket: std::net::TcpListener,
    app: &Arc<App>,
    stop: &Arc<AtomicBool>,
) -> io::Result<Ended> {
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    let graceful = Arc::new(GracefulShutdown::new());
    let accepting = tokio::spawn(accept(socket, Arc::clone(app), Arc::clone(&graceful)));
    let announcing = tokio::spawn(announce(Arc::clone(app)));
    let draining = tokio::spawn(drain(Arc::clone(app), Arc::clone(stop)));
    // While it drains the server says so to whoever asks: connections are accepted to the end. A model that is loading is not
    // waited for.
    app.service.loaded().await;
    let ended = match app.service.phase() {
        Phase::Draining => Ended::WhileLoading,
        _ => {
            app.service.over().await;
            Ended::Over
        }
    };
    accepting.abort();
    announcing.abort();
    draining.abort();
    let _ = accepting.await;
    if let Some(graceful) = Arc::into_inner(graceful) {
        // Whoever does not take the answer by then does not want it.
        let _ = timeout(FLUSH, graceful.shutdown()).await;
    }
    Ok(ended)
}

/// Says when the model is there.
async fn announce(app: Arc<App>) {
    let began = Instant::now();
    app.service.loaded().await;
    if app.service.phase() == Phase::Ready {
        let seconds = began.elapsed().as_secs_f64();
        (app.settings.log)(Record::Ready { seconds });
    }
}

/// Ends the service once it is asked to.
async fn drain(app: Arc<App>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        sleep(TICK).await;
    }
    (app.settings.log)(Record::Draining { open: app.service.open() });
    app.service.drain();
    sleep(app.settings.drain).await;
    let open = app.service.open();
    app.service.abort();
    if open > 0 {
        (app.settings.log)(Record::Aborted { open });
    }
}

async fn accept(socket: TcpListener, app: Arc<App>, graceful: Arc<GracefulShutdown>) {
    // More than ever wait for an answer, and a few that ask how things are.
    const OTHERS: usize = 256;
    let most = app.service.limits().open().saturating_mul(2).saturating_add(OTHERS);
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let router = routes::router(&app);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // A connection that was gone at once, or no file handles: they come back as others end.
                sleep(TICK).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = TokioIo::new(Connection::new(stream));
        let served = graceful.watch(http.serve_connection(connection, service));
        tokio::spawn(async move {
            // What breaks a connection off is told by the line of its request.
            let _ = served.await;
            drop(place);
        });
    }
}
