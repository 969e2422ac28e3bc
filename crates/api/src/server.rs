//! Accepts connections, and shuts down in order.

use crate::app::{ApiSettings, App, TextProcessor};
use crate::connection::Connection;
use crate::log::Record;
use crate::routes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serving::{Service, ServicePhase};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Polling interval of the stop flag.
const TICK: Duration = Duration::from_millis(25);

/// Time limit for the head of a request, and for an idle connection.
const HEAD: Duration = Duration::from_secs(30);

/// Time limit for connections to send their remaining data after the last answer.
const FLUSH: Duration = Duration::from_secs(5);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerExit {
    /// The engine's thread has ended, and returns its result.
    Over,
    /// The server was stopped while the model was loading; the loading thread continues.
    WhileLoading,
}

/// Serves a socket until `stop` is set and open requests have ended, or the service has failed.
///
/// # Errors
/// The system cannot start threads or rejects the socket.
pub fn serve(
    socket: std::net::TcpListener,
    service: Service,
    (texts, settings): (TextProcessor, ApiSettings),
    stop: &Arc<AtomicBool>,
) -> io::Result<ServerExit> {
    // The engine's threads need the other cores.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
    let threads = threads.clamp(1, 8);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        // Requests are parsed and tokenized on these, and wait here for chat templates. `LongTexts` limits how many use
        // a core for long.
        .max_blocking_threads(threads + 1 + models::MAX_CONCURRENT_RENDERS)
        .thread_name("api")
        .enable_io()
        .enable_time()
        .build()?;
    let app = Arc::new(App::new(service, texts, settings, threads + 1));
    let served = runtime.block_on(run(socket, &app, stop));
    // The text of an abandoned request may still be processed.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn run(
    socket: std::net::TcpListener,
    app: &Arc<App>,
    stop: &Arc<AtomicBool>,
) -> io::Result<ServerExit> {
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    let graceful = Arc::new(GracefulShutdown::new());
    let accepting = tokio::spawn(accept(socket, Arc::clone(app), Arc::clone(&graceful)));
    let announcing = tokio::spawn(announce(Arc::clone(app)));
    let draining = tokio::spawn(drain(Arc::clone(app), Arc::clone(stop)));
    // While draining, the server still accepts connections and reports its state. A model that is loading is not waited
    // for.
    app.service.loaded().await;
    let ended = match app.service.phase() {
        ServicePhase::Draining => ServerExit::WhileLoading,
        _ => {
            app.service.stopped().await;
            ServerExit::Over
        }
    };
    accepting.abort();
    announcing.abort();
    draining.abort();
    let _ = accepting.await;
    if let Some(graceful) = Arc::into_inner(graceful) {
        // A client that has not read the answer by then is dropped.
        let _ = timeout(FLUSH, graceful.shutdown()).await;
    }
    Ok(ended)
}

/// Logs when the model is loaded.
async fn announce(app: Arc<App>) {
    let began = Instant::now();
    app.service.loaded().await;
    if app.service.phase() == ServicePhase::Ready {
        let seconds = began.elapsed().as_secs_f64();
        (app.settings.log)(Record::Ready { seconds });
    }
}

/// Ends the service after the stop flag.
async fn drain(app: Arc<App>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        sleep(TICK).await;
    }
    let seconds = app.settings.drain.as_secs();
    (app.settings.log)(Record::Draining { open: app.service.open(), seconds });
    app.service.drain();
    sleep(app.settings.drain).await;
    let open = app.service.open();
    app.service.abort();
    if open > 0 {
        (app.settings.log)(Record::Aborted { open });
    }
}

async fn accept(socket: TcpListener, app: Arc<App>, graceful: Arc<GracefulShutdown>) {
    // More connections than sequences that ever wait, and some for probes.
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
                // A connection that was closed at once, or no file handles, which are freed as others end.
                sleep(TICK).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = TokioIo::new(Connection::new(stream));
        let served = graceful.watch(http.serve_connection(connection, service));
        tokio::spawn(async move {
            // The log line of its request reports a broken connection.
            let _ = served.await;
            drop(place);
        });
    }
}
