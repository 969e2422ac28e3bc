//! The routes, one per file.

mod chat;
mod completions;
mod detokenize;
mod embeddings;
mod health;
mod load;
mod messages;
mod metrics;
mod models;
mod page;
mod responses;
mod tokenize;
mod version;

use crate::answers::{Answers, Work};
use crate::app::{App, Line, RejectedRequest};
use crate::body;
use crate::cors::Decision;
use crate::error::{ApiError, ErrorShape};
use crate::fields::Fields;
use crate::render::{self, Renderer};
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use std::pin::Pin;
use std::sync::Arc;

/// A route.
pub(crate) struct Route {
    method: HttpMethod,
    path: &'static str,
    /// Whether it needs no API key: probes have none.
    open: bool,
    /// The format of its errors.
    errors: ErrorShape,
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HttpMethod {
    Get,
    Post,
    Delete,
}

/// The handler of a route.
#[derive(Clone, Copy)]
enum Answer {
    /// Immediately, without a body.
    Now(fn(&App) -> Response),
    /// Immediately, for the object named by the rest of the path.
    Named(fn(&App, &str) -> Result<Response, ApiError>),
    /// From the fields of a body. It writes the log line itself, or returns it with an error.
    FromBody(fn(Arc<App>, Fields, Line) -> ResponseFuture),
}

/// An asynchronous answer.
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Box<RejectedRequest>>> + Send>>;

const ROUTES: &[Route] = &[
    chat::ROUTE,
    completions::ROUTE,
    embeddings::ROUTE,
    responses::ROUTE,
    responses::GET,
    responses::DELETE,
    responses::INPUT,
    messages::ROUTE,
    messages::COUNT,
    models::ROUTE,
    models::ONE,
    tokenize::ROUTE,
    detokenize::ROUTE,
    health::ROUTE,
    health::PING,
    health::PING_BY_POST,
    version::ROUTE,
    load::ROUTE,
    metrics::ROUTE,
    page::ROUTE,
];

/// A router of all routes.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let app = Arc::clone(app);
        let filter = match route.method {
            HttpMethod::Get => MethodFilter::GET,
            HttpMethod::Post => MethodFilter::POST,
            HttpMethod::Delete => MethodFilter::DELETE,
        };
        let answer = move |request: Request| {
            let own = Arc::clone(&app);
            across_origins(Arc::clone(&app), request, |request| run(own, route, request))
        };
        router = router.route(route.path, on(filter, answer));
    }
    let (unknown, not_allowed) = (Arc::clone(app), Arc::clone(app));
    router
        .fallback(move |request: Request| {
            let own = Arc::clone(&unknown);
            across_origins(Arc::clone(&unknown), request, |request| async move {
                refuse(&own, &request, false)
            })
        })
        .method_not_allowed_fallback(move |request: Request| {
            let own = Arc::clone(&not_allowed);
            across_origins(Arc::clone(&not_allowed), request, |request| async move {
                refuse(&own, &request, true)
            })
        })
}

/// Answers a request if its origin is allowed, and lets the page read the response.
async fn across_origins<F: Future<Output = Response>>(
    app: Arc<App>,
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let cors = &app.settings.cors;
    let decision = cors.decide(request.headers());
    if let Some(response) = decision.response(cors, request.method(), request.headers()) {
        if let Decision::Refused(error) = &decision {
            let route = named(request.method(), request.uri().path());
            Line::new(&app.settings.log, route, false).failed(error);
        }
        return response;
    }
    let mut response = answer(request).await;
    if let Decision::Allowed(origin) = &decision {
        cors.expose(origin, &mut response);
    }
    response
}

/// The error for an unknown path or method.
fn refuse(app: &App, request: &Request, known: bool) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let mut line = Line::new(&app.settings.log, named(method, path), false);
    let error = match known {
        true => ApiError::method_not_allowed(format!("{path} does not take {method}")),
        false => ApiError::unknown_url(format!("the server has no path {path}")),
    };
    line.failed(&error);
    error.response(ErrorShape::OpenAi)
}

/// A method and a path, truncated.
fn named(method: &Method, path: &str) -> String {
    const SHOWN: usize = 80;
    format!("{method} {}", path.chars().take(SHOWN).collect::<String>())
}

async fn run(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let quiet = matches!(route.answer, Answer::Now(_));
    let line = Line::new(&app.settings.log, named(request.method(), route.path), quiet);
    match answer(app, route, request, line).await {
        Ok(response) => response,
        Err(refused) => refused.response(route.errors),
    }
}

async fn answer(
    app: Arc<App>,
    route: &'static Route,
    request: Request<Body>,
    mut line: Line,
) -> Result<Response, Box<RejectedRequest>> {
    if !route.open && !app.keys.open(request.headers()) {
        return Err(RejectedRequest::new(ApiError::invalid_key(), line));
    }
    match route.answer {
        Answer::Now(answer) => {
            let response = answer(&app);
            line.done(response.status());
            Ok(response)
        }
        Answer::Named(answer) => {
            let (mut parts, _) = request.into_parts();
            let name = Path::<String>::from_request_parts(&mut parts, &()).await;
            let answered = match name {
                Ok(Path(name)) => answer(&app, &name),
                Err(error) => Err(ApiError::invalid(error.to_string())),
            };
            match answered {
                Ok(response) => {
                    line.done(response.status());
                    Ok(response)
                }
                Err(error) => Err(RejectedRequest::new(error, line)),
            }
        }
        Answer::FromBody(answer) => {
            if let Err(error) = body::check_type(request.headers()) {
                return Err(RejectedRequest::new(error, line));
            }
            let read = body::read(request.into_body(), app.settings.body_bytes, body::WITHIN).await;
            let fields = match read {
                Ok(body) => {
                    let room = app.large_bodies.room(body.len()).await;
                    run_blocking(move || Ok(Fields::of_body(&body)?.holding(room))).await
                }
                Err(error) => Err(error),
            };
            match fields {
                Ok(fields) => answer(app, fields, line).await,
                Err(error) => Err(RejectedRequest::new(error, line)),
            }
        }
    }
}

/// A generation request, and the renderer of its answers.
struct Generation {
    work: Work,
    renderer: Box<dyn Renderer>,
}

/// Generated text, streamed or complete. `read` parses the fields.
fn generated(
    app: Arc<App>,
    fields: Fields,
    line: Line,
    read: fn(&Arc<App>, Fields) -> Result<Generation, ApiError>,
) -> ResponseFuture {
    Box::pin(async move {
        let own = Arc::clone(&app);
        let Generation { work, renderer } = match run_blocking(move || read(&own, fields)).await {
            Ok(generation) => generation,
            Err(error) => return Err(RejectedRequest::new(error, line)),
        };
        let (stream, count) = (work.asked.stream, work.asked.choices * work.prompts.len());
        let answers = Answers::new(&app, work, renderer.id(), line)?;
        Ok(match stream {
            true => render::stream(renderer, answers),
            false => render::whole(renderer, answers, count).await,
        })
    })
}

/// Runs CPU-bound work, such as tokenizing a long text, on another thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ApiError::server(error.to_string())),
    }
}
