//! Fields for sampling and for the end of an answer, shared by all generation requests.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request_fields::STREAM;
use models::Sampling;
use serde_json::Value;
use serving::TokenRules;
use std::collections::BTreeMap;

/// Settings of a request's answers.
#[derive(Debug, Clone)]
pub(crate) struct AnswerSettings {
    pub(crate) sampling: Sampling,
    /// Number of answers per prompt.
    pub(crate) choices: usize,
    /// Stop strings.
    pub(crate) stops: Vec<String>,
    /// Stop tokens.
    pub(crate) stop_ids: Vec<u32>,
    /// Restrictions on tokens.
    pub(crate) rules: TokenRules,
    pub(crate) stream: bool,
    pub(crate) usage: StreamUsage,
}

/// Which events of a stream have token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    /// None of them.
    #[default]
    Never,
    /// An event after the last choice.
    Last,
    /// That event, and those of choices too.
    Every,
}

/// Maximum number of stop strings of a request.
const STOPS: usize = 16;

impl AnswerSettings {
    pub(crate) fn read(fields: &mut Fields, app: &App) -> Result<Self, ApiError> {
        let choices = i64::try_from(app.settings.choices).unwrap_or(i64::MAX);
        let sampling = sampling(fields, app)?;
        let stops = stops(fields, "stop")?;
        let mut stop_ids = fields.ids("stop_token_ids")?.unwrap_or_default();
        if !fields.flag("ignore_eos")?.unwrap_or(false) {
            stop_ids.extend(&app.texts.stop_ids);
        }
        let rules = rules(fields)?;
        let choices = fields.count("n", 1..=choices)?.unwrap_or(1);
        let stream = fields.flag("stream")?.unwrap_or(false);
        let usage = stream_usage(fields, stream)?;
        Ok(Self { sampling, choices, stops, stop_ids, rules, stream, usage })
    }

    /// The settings of one of several answers to a prompt, which need different seeds.
    pub(crate) fn sampling_of(&self, choice: usize) -> Sampling {
        Sampling { seed: self.sampling.seed.wrapping_add(choice as u64), ..self.sampling.clone() }
    }
}

/// Sampling settings; a missing field has the model's default.
fn sampling(fields: &mut Fields, app: &App) -> Result<Sampling, ApiError> {
    let defaults = &app.settings.defaults;
    let seed = fields.whole("seed", i64::MIN..=i64::MAX)?;
    // As in vLLM, 0 and -1 mean all tokens.
    let top_k = match fields.whole("top_k", -1..=i64::MAX)? {
        Some(count) => usize::try_from(count).ok().filter(|count| *count > 0),
        None => defaults.top_k,
    };
    let temperature = fields.number("temperature", 0.0..=f64::MAX, "0 or more")?;
    let top_p = fields.number(
        "top_p",
        f64::MIN_POSITIVE..=1.0,
        "a number above 0, at most 1: 1 is for all tokens",
    )?;
    let min_p = fields.number("min_p", 0.0..=1.0, "0 to 1: 0 is for all tokens")?;
    let repetition_penalty = fields.number(
        "repetition_penalty",
        f64::MIN_POSITIVE..=f64::MAX,
        "a number above 0: 1 disables it",
    )?;
    let mut penalty = |name| fields.number(name, -2.0..=2.0, "-2 to 2: 0 disables it");
    let presence_penalty = penalty("presence_penalty")?.unwrap_or(0.0);
    let frequency_penalty = penalty("frequency_penalty")?.unwrap_or(0.0);
    Ok(Sampling {
        logit_bias: logit_bias(fields, app)?,
        temperature: temperature.unwrap_or(defaults.temperature),
        top_p: top_p.unwrap_or(defaults.top_p),
        top_k,
        min_p: min_p.unwrap_or(defaults.min_p),
        repetition_penalty: repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty,
        frequency_penalty,
        seed: seed.map_or_else(|| app.random(), i64::cast_unsigned),
    })
}

/// Restrictions on tokens.
fn rules(fields: &mut Fields) -> Result<TokenRules, ApiError> {
    let min_tokens = fields.count("min_tokens", 0..=i64::MAX)?.unwrap_or(0);
    Ok(TokenRules { min_tokens, allowed: fields.ids("allowed_token_ids")?.unwrap_or_default() })
}

/// OpenAI's `logit_bias`: an object from token ids to numbers that are added to their logits.
fn logit_bias(fields: &mut Fields, app: &App) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let Value::Object(biases) = biases.into_value() else { return Ok(Vec::new()) };
    let vocabulary = app.service.limits().vocabulary;
    let read = |(token, bias): (&String, &Value)| {
        let wrong = |wanted: &str| fields.wrong(&format!("logit_bias.{token}"), bias, wanted);
        let id: u32 = token.parse().map_err(|_| wrong("a token id as its name"))?;
        if id as usize >= vocabulary {
            let wanted = format!("a token id below {vocabulary}, the size of the vocabulary");
            return Err(wrong(&wanted));
        }
        match bias.as_f64() {
            None => Err(wrong("a number").with_code("invalid_type")),
            Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((id, bias as f32)),
            Some(_) => Err(wrong("a number from -100 to 100")),
        }
    };
    // Two spellings of one id are one token.
    let biases: BTreeMap<u32, f32> = biases.iter().map(read).collect::<Result<_, _>>()?;
    Ok(biases.into_iter().filter(|(_, bias)| *bias != 0.0).collect())
}

/// Stop strings.
pub(crate) fn stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, ApiError> {
    let stops = fields.texts(name)?;
    if stops.len() > STOPS {
        let message = format!("`{name}` has {} texts, expected at most {STOPS}", stops.len());
        return Err(ApiError::field(name, message).with_code("array_above_max_length"));
    }
    Ok(stops)
}

fn stream_usage(fields: &mut Fields, stream: bool) -> Result<StreamUsage, ApiError> {
    let Some(options) = fields.object("stream_options")? else { return Ok(StreamUsage::Never) };
    if !stream {
        let message = "`stream_options` requires `stream`";
        return Err(ApiError::field("stream_options", message));
    }
    let mut options = options.screen(STREAM)?;
    let last = options.flag("include_usage")?.unwrap_or(false);
    let every = options.flag("continuous_usage_stats")?.unwrap_or(false);
    options.end()?;
    Ok(match (last, every) {
        (true, true) => StreamUsage::Every,
        (true, false) => StreamUsage::Last,
        (false, _) => StreamUsage::Never,
    })
}
