//! What can be asked for: one route, one file.

mod chat;
mod completions;
mod detokenize;
mod health;
mod load;
mod metrics;
mod models;
mod page;
mod tokenize;
mod version;

use crate::answers::{Answers, Work};
use crate::app::{App, Line, Refused};
use crate::body;
use crate::error::ApiError;
use crate::events::{self, Form, Head};
use crate::fields::Fields;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use std::pin::Pin;
use std::sync::Arc;

/// A route.
pub(crate) struct Route {
    method: Verb,
    path: &'static str,
    /// Whether it is answered without a key: probes have none.
    open: bool,
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    Post,
}

/// How a route is answered.
#[derive(Clone, Copy)]
enum Answer {
    /// At once, without a body.
    Now(fn(&App) -> Response),
    /// From the fields of a body. It writes the log's line itself, or gives it back with an error.
    Asked(fn(Arc<App>, Fields, Line) -> Answered),
}

/// An answer that takes a while.
type Answered = Pin<Box<dyn Future<Output = Result<Response, Box<Refused>>> + Send>>;

const ROUTES: &[Route] = &[
    chat::ROUTE,
    completions::ROUTE,
    models::ROUTE,
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

/// All of them.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let app = Arc::clone(app);
        let filter = match route.method {
            Verb::Get => MethodFilter::GET,
            Verb::Post => MethodFilter::POST,
        };
        let answer = move |request: Request| run(Arc::clone(&app), route, request);
        router = router.route(route.path, on(filter, answer));
    }
    let (nowhere, otherwise) = (Arc::clone(app), Arc::clone(app));
    router
        .fallback(move |request: Request| async move { refuse(&nowhere, &request, false) })
        .method_not_allowed_fallback(move |request: Request| async move {
            refuse(&otherwise, &request, true)
        })
}

/// The path is not one of ours, or the method is not one of the path's.
fn refuse(app: &App, request: &Request, known: bool) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let mut line = Line::new(&app.settings.log, named(method, path), false);
    let error = match known {
        true => ApiError::no_route(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{path} is not asked by {method}"),
        ),
        false => ApiError::no_route(StatusCode::NOT_FOUND, format!("there is no {path} here")),
    };
    line.failed(&error);
    error.response()
}

/// A method and a path, which may be anything.
fn named(method: &Method, path: &str) -> String {
    const SHOWN: usize = 80;
    format!("{method} {}", path.chars().take(SHOWN).collect::<String>())
}

async fn run(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let quiet = matches!(route.answer, Answer::Now(_));
    let line = Line::new(&app.settings.log, named(request.method(), route.path), quiet);
    match answer(app, route, request, line).await {
        Ok(response) => response,
        Err(refused) => refused.response(),
    }
}

async fn answer(
    app: Arc<App>,
    route: &'static Route,
    request: Request<Body>,
    mut line: Line,
) -> Result<Response, Box<Refused>> {
    if !route.open && !app.keys.open(request.headers()) {
        return Err(Refused::new(ApiError::no_key(), line));
    }
    match route.answer {
        Answer::Now(answer) => {
            let response = answer(&app);
            line.done(response.status());
            Ok(response)
        }
        Answer::Asked(answer) => {
            let read = body::read(request.into_body(), app.settings.body_bytes, body::WITHIN).await;
            let fields = match read {
                Ok(body) => {
                    let room = app.large_bodies.room(body.len()).await;
                    aside(move || Ok(Fields::of_body(&body)?.holding(room))).await
                }
                Err(error) => Err(error),
            };
            match fields {
                Ok(fields) => answer(app, fields, line).await,
                Err(error) => Err(Refused::new(error, line)),
            }
        }
    }
}

/// Text that a model generates, streamed or whole: what both kinds of completion share. `work` reads the fields.
fn generated(
    app: Arc<App>,
    fields: Fields,
    line: Line,
    form: Form,
    work: fn(&App, Fields) -> Result<Work, ApiError>,
) -> Answered {
    Box::pin(async move {
        let own = Arc::clone(&app);
        let work = match aside(move || work(&own, fields)).await {
            Ok(work) => work,
            Err(error) => return Err(Refused::new(error, line)),
        };
        let (stream, include_usage) = (work.asked.stream, work.asked.include_usage);
        let count = work.asked.choices * work.prompts.len();
        let head = Head::new(form, &app, work.logprobs.is_some());
        let answers = Answers::new(&app, work, &head.id, line)?;
        Ok(match stream {
            true => events::stream(head, answers, count, include_usage),
            false => events::whole(&head, answers, count).await,
        })
    })
}

/// Work that keeps a core busy for a while, such as a long text's tokens, beside the answers of others.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ApiError::server(error.to_string())),
    }
}
