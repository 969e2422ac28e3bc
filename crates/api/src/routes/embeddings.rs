//! `POST /v1/embeddings`: OpenAI's, with the model's hidden states pooled as configured by its files or
//! `--pooler-config`.

use super::{Answer, HttpMethod, ResponseFuture, Route, run_blocking};
use crate::app::{App, Line, RejectedRequest};
use crate::error::{ApiError, ErrorShape};
use crate::fields::{Fields, ids};
use crate::reply;
use crate::request_fields::EMBEDDINGS;
use axum::http::StatusCode;
use models::Pooler;
use serde_json::{Value, json};
use serving::{SubmitError, Update};
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/v1/embeddings",
    open: false,
    errors: ErrorShape::OpenAi,
    answer: Answer::FromBody(answer),
};

/// Maximum number of texts of a request: OpenAI's limit.
const MOST: usize = 2048;

/// A request's texts, and the format of its answer.
struct Texts {
    texts: Vec<Vec<u32>>,
    pooler: Pooler,
    base64: bool,
    /// The requested length of vectors.
    dimensions: Option<usize>,
}

fn answer(app: Arc<App>, fields: Fields, mut line: Line) -> ResponseFuture {
    Box::pin(async move {
        let own = Arc::clone(&app);
        let read = match run_blocking(move || read(&own, fields)).await {
            Ok(read) => read,
            Err(error) => return Err(RejectedRequest::new(error, line)),
        };
        let tokens = read.texts.iter().map(Vec::len).sum();
        line.begin(&app.id("embd-"), tokens);
        match embed(&app, read, tokens).await {
            Ok(document) => {
                line.done(StatusCode::OK);
                Ok(reply::good(&document))
            }
            Err(error) => Err(RejectedRequest::new(error, line)),
        }
    })
}

fn read(app: &App, fields: Fields) -> Result<Texts, ApiError> {
    let mut fields = fields.screen(EMBEDDINGS)?;
    app.check_model(fields.text("model")?)?;
    let pooler = match &app.texts.pooler {
        Ok(pooler) => *pooler,
        Err(why) => {
            let message = format!("this model's embeddings are not supported: {why}");
            return Err(ApiError::invalid(message).with_code("unsupported_model"));
        }
    };
    let base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(fields.wrong("encoding_format", &other.into(), "float or base64"));
        }
    };
    let dimensions = fields.count("dimensions", 1..=i64::MAX)?;
    let special = fields.flag("add_special_tokens")?.unwrap_or(true);
    let input = fields.take("input").ok_or_else(|| fields.required("input"))?;
    let texts = texts(app, &input, special, &fields)?;
    fields.end()?;
    Ok(Texts { texts, pooler, base64, dimensions })
}

/// A text, token ids, or a list of either.
fn texts(
    app: &App,
    input: &Value,
    special: bool,
    fields: &Fields,
) -> Result<Vec<Vec<u32>>, ApiError> {
    const WANTED: &str = "a text, a list of token ids, or a list of texts or of such lists";
    let one = |input: &Value| match input {
        Value::String(text) => Some(app.encode(text, special, "input")),
        list => ids(list).map(Ok),
    };
    if input.as_array().is_some_and(Vec::is_empty) {
        return Err(fields.wrong("input", input, WANTED).with_code("empty_array"));
    }
    let all = match (one(input), input) {
        (Some(one), _) => vec![one?],
        (None, Value::Array(all)) if all.len() <= MOST => {
            let all = all.iter().map(one).collect::<Option<Vec<_>>>();
            all.ok_or_else(|| fields.wrong("input", input, WANTED))?
                .into_iter()
                .collect::<Result<_, _>>()?
        }
        (None, Value::Array(all)) => {
            let message = format!("`input` has {} texts, expected at most {MOST}", all.len());
            return Err(ApiError::field("input", message).with_code("array_above_max_length"));
        }
        _ => return Err(fields.wrong("input", input, WANTED)),
    };
    if all.iter().any(Vec::is_empty) {
        let message = "`input` has a text without tokens";
        return Err(ApiError::field("input", message).with_code("empty_string"));
    }
    Ok(all)
}

async fn embed(app: &App, read: Texts, tokens: usize) -> Result<Value, ApiError> {
    let Texts { texts, pooler, base64, dimensions } = read;
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; texts.len()];
    let ticket = app.service.embed(texts, pooler.pooling);
    let mut ticket = ticket.map_err(|refusal| match refusal {
        SubmitError::Invalid { .. } | SubmitError::TooLong { .. } => {
            ApiError::from(refusal).with_param("input")
        }
        refusal => refusal.into(),
    })?;
    while vectors.iter().any(Option::is_none) {
        match ticket.next().await {
            Some(Update::Embedded { index, values }) => {
                vectors[index] = Some(pooler.finish(values));
            }
            Some(Update::Failed { why, .. }) => return Err(why.into()),
            Some(_) => {}
            None => return Err(ApiError::server("the engine has ended")),
        }
    }
    let mut data = Vec::with_capacity(vectors.len());
    for (index, values) in vectors.into_iter().flatten().enumerate() {
        if let Some(wanted) = dimensions.filter(|wanted| *wanted != values.len()) {
            let there = values.len();
            let message = format!(
                "`dimensions` is {wanted}: this model's vectors have {there}, and truncated vectors are meaningless"
            );
            return Err(ApiError::field("dimensions", message).with_code("unsupported_value"));
        }
        let embedding = match base64 {
            true => Value::String(to_base64(values.iter().flat_map(|value| value.to_le_bytes()))),
            false => json!(values),
        };
        data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
    }
    Ok(json!({
        "object": "list",
        "data": data,
        "model": app.name(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    }))
}

/// RFC 4648's base64, with padding.
fn to_base64(bytes: impl Iterator<Item = u8>) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = bytes.collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - group.len()));
        for at in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::to_base64;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let of = |text: &str| to_base64(text.bytes());
        for (text, wanted) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(of(text), wanted);
        }
        assert_eq!(to_base64([0xff, 0xef, 0xbe].into_iter()), "/+++");
    }
}
