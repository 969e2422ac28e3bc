//! What requests for text have in common.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use models::Sampling;
use serde_json::json;

/// How answers are made.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) sampling: Sampling,
    /// Answers to each prompt.
    pub(crate) choices: usize,
    /// Texts that end an answer.
    pub(crate) stops: Vec<String>,
    /// Tokens that end it.
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) stream: bool,
    /// Whether a stream ends with what was counted.
    pub(crate) include_usage: bool,
}

/// Fields that clients send with the value that asks for nothing.
fn neutral(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, value) in
        [("logit_bias", json!({})), ("skip_special_tokens", json!(true)), ("store", json!(false))]
    {
        fields.only(name, &value)?;
    }
    Ok(())
}

impl Asked {
    pub(crate) fn read(fields: &mut Fields, app: &App) -> Result<Self, ApiError> {
        const STOPS: usize = 16;
        let defaults = &app.settings.defaults;
        let choices = i64::try_from(app.settings.choices).unwrap_or(i64::MAX);
        let seed = fields.whole("seed", i64::MIN..=i64::MAX)?;
        // As for vLLM, 0 and -1 are for all tokens.
        let top_k = match fields.whole("top_k", -1..=i64::MAX)? {
            Some(count) => usize::try_from(count).ok().filter(|count| *count > 0),
            None => defaults.top_k,
        };
        let sampling = Sampling {
            temperature: fields.number("temperature")?.unwrap_or(defaults.temperature),
            top_p: fields.number("top_p")?.unwrap_or(defaults.top_p),
            top_k,
            min_p: fields.number("min_p")?.unwrap_or(defaults.min_p),
            repetition_penalty: fields
                .number("repetition_penalty")?
                .unwrap_or(defaults.repetition_penalty),
            presence_penalty: fields.number("presence_penalty")?.unwrap_or(0.0),
            frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(0.0),
            seed: seed.map_or_else(|| app.random(), i64::cast_unsigned),
        };
        let stops = fields.texts("stop")?;
        if stops.len() > STOPS {
            let message = format!("`stop` has {} texts, wanted at most {STOPS}", stops.len());
            return Err(ApiError::field("stop", message));
        }
        let mut stop_ids = fields.ids("stop_token_ids")?.unwrap_or_default();
        if !fields.flag("ignore_eos")?.unwrap_or(false) {
            stop_ids.extend(&app.texts.stop_ids);
        }
        let choices = fields.count("n", 1..=choices)?.unwrap_or(1);
        let stream = fields.flag("stream")?.unwrap_or(false);
        let options = fields.object("stream_options")?;
        if options.is_some() && !stream {
            let message = "`stream_options` is for answers with `stream` alone";
            return Err(ApiError::field("stream_options", message));
        }
        let mut include_usage = false;
        if let Some(mut options) = options {
            include_usage = options.flag("include_usage")?.unwrap_or(false);
            options.only("continuous_usage_stats", &json!(false))?;
            options.only("include_obfuscation", &json!(false))?;
            options.end()?;
        }
        neutral(fields)?;
        Ok(Self { sampling, choices, stops, stop_ids, stream, include_usage })
    }

    /// The settings of one of several answers to a prompt, which would be the same by the same seed.
    pub(crate) fn sampling_of(&self, choice: usize) -> Sampling {
        Sampling { seed: self.sampling.seed.wrapping_add(choice as u64), ..self.sampling.clone() }
    }
}
