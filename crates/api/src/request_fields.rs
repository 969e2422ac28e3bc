//! Every field that clients of each API send, and how the server handles it.
//!
//! A field that changes no token of an answer is ignored. A field that requests an unsupported feature is refused by
//! name, unless its value disables the feature.

/// An API, or an object within its requests. Each is one bit, so that a row of the table covers several.
pub(crate) type Surface = u16;

pub(crate) const CHAT: Surface = 1;
pub(crate) const COMPLETIONS: Surface = 1 << 1;
pub(crate) const RESPONSES: Surface = 1 << 2;
/// Anthropic's Messages API.
pub(crate) const ANTHROPIC: Surface = 1 << 3;
pub(crate) const EMBEDDINGS: Surface = 1 << 4;
/// vLLM's `/tokenize`.
pub(crate) const TOKENIZE: Surface = 1 << 5;
/// vLLM's `/detokenize`.
pub(crate) const DETOKENIZE: Surface = 1 << 6;
/// A message of a conversation.
pub(crate) const MESSAGE: Surface = 1 << 7;
/// `stream_options`.
pub(crate) const STREAM: Surface = 1 << 8;
/// `response_format.json_schema`, and `text.format` of Responses.
pub(crate) const SCHEMA: Surface = 1 << 9;

const TEXT: Surface = CHAT | COMPLETIONS;
const GENERATE: Surface = TEXT | RESPONSES | ANTHROPIC;
const EVERY: Surface = GENERATE | EMBEDDINGS | TOKENIZE | DETOKENIZE;
const TEMPLATE: Surface = CHAT | TOKENIZE;

/// How a field is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// Its value is used.
    Read,
    /// It changes no token of an answer: any value is accepted.
    Ignored,
    /// Only these values (in JSON), which disable the feature, are accepted; others are refused for this reason.
    Neutral(&'static [&'static str], &'static str),
    /// Any value is refused for this reason.
    Refused(&'static str),
}

use Handling::{Ignored, Neutral, Read, Refused};

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) on: Surface,
    pub(crate) handling: Handling,
}

const fn field(name: &'static str, on: Surface, handling: Handling) -> Field {
    Field { name, on, handling }
}

const FALSE: &[&str] = &["false"];
const TRUE: &[&str] = &["true"];
const NO_TOOL_RUNS: &str = "the server runs no tools itself: give it as a function in `tools`";
const TEXT_ONLY: &str = "the server gives text only";
const DEPRECATED_CALLS: &str = "OpenAI replaced it by `tools` and `tool_choice`";
const NOT_STORED: &str = "the server has no such store: send the whole conversation";
const OWN_SCHEDULE: &str = "responses are generated while the client waits";

/// The table. A name has several rows if APIs handle it differently.
#[rustfmt::skip] // One line per field.
pub(crate) const FIELDS: &[Field] = &[
    // Every API.
    field("model", EVERY, Read),
    field("user", EVERY, Ignored),
    // The input.
    field("messages", CHAT | TOKENIZE | ANTHROPIC, Read),
    field("prompt", COMPLETIONS | TOKENIZE, Read),
    field("prompt", RESPONSES, Refused("the server stores no prompt templates")),
    field("input", RESPONSES | EMBEDDINGS, Read),
    field("instructions", RESPONSES, Read),
    field("system", ANTHROPIC, Read),
    field("tokens", DETOKENIZE, Read),
    field("previous_response_id", RESPONSES, Read),
    field("conversation", RESPONSES, Refused(NOT_STORED)),
    field("context_management", RESPONSES, Neutral(&["[]"], "the server does not compact conversations")),
    field("truncation", RESPONSES, Neutral(&["\"disabled\"", "\"auto\""], "it is unknown")),
    field("image", RESPONSES, Refused(TEXT_ONLY)),
    field("suffix", COMPLETIONS, Neutral(&["\"\""], "the server does not support fill-in-the-middle")),
    field("echo", COMPLETIONS, Read),
    field("echo", CHAT, Neutral(FALSE, "the prompt is not part of an answer")),
    // How the chat template is rendered.
    field("chat_template_kwargs", TEMPLATE, Read),
    field("documents", TEMPLATE, Read),
    field("reasoning_effort", TEMPLATE, Read),
    field("add_generation_prompt", TEMPLATE, Neutral(TRUE, "an answer is a separate message")),
    field("continue_final_message", TEMPLATE, Neutral(FALSE, "an answer is a separate message")),
    field("chat_template", TEMPLATE, Refused("the model's template is used")),
    field("mm_processor_kwargs", TEMPLATE, Refused("the model reads text only")),
    field("add_special_tokens", COMPLETIONS | TOKENIZE | EMBEDDINGS, Read),
    field("add_special_tokens", CHAT, Neutral(FALSE, "the chat template writes them")),
    field("return_token_strs", TOKENIZE, Read),
    field("truncate_prompt_tokens", TEXT | EMBEDDINGS, Refused("prompts are not truncated")),
    // Tools.
    field("tools", CHAT | TOKENIZE | RESPONSES | ANTHROPIC, Read),
    field("tool_choice", CHAT | TOKENIZE | RESPONSES | ANTHROPIC, Read),
    field("parallel_tool_calls", CHAT | TOKENIZE | RESPONSES, Read),
    field("functions", CHAT, Neutral(&["[]"], DEPRECATED_CALLS)),
    field("function_call", CHAT, Neutral(&["\"none\"", "\"auto\""], DEPRECATED_CALLS)),
    field("max_tool_calls", RESPONSES, Ignored),
    field("web_search_options", CHAT, Refused(NO_TOOL_RUNS)),
    field("container", ANTHROPIC, Refused(NO_TOOL_RUNS)),
    field("mcp_servers", ANTHROPIC, Neutral(&["[]"], NO_TOOL_RUNS)),
    // Sampling.
    field("temperature", GENERATE, Read),
    field("top_p", GENERATE, Read),
    field("top_k", GENERATE, Read),
    field("min_p", TEXT | RESPONSES, Read),
    field("seed", TEXT | RESPONSES, Read),
    field("n", TEXT, Read),
    field("repetition_penalty", TEXT | RESPONSES, Read),
    field("presence_penalty", TEXT | RESPONSES, Read),
    field("frequency_penalty", TEXT | RESPONSES, Read),
    field("logit_bias", TEXT, Read),
    field("length_penalty", TEXT, Neutral(&["1"], "it belongs to beam search, which the server does not support")),
    field("use_beam_search", TEXT, Neutral(FALSE, "the server samples")),
    field("best_of", TEXT, Neutral(&["1"], "every answer is returned: use `n`")),
    field("allowed_token_ids", TEXT, Read),
    field("bad_words", TEXT, Neutral(&["[]"], "the server does not support banned words")),
    field("logits_processors", TEXT, Neutral(&["[]"], "the server runs no code of requests")),
    // The end of an answer.
    field("max_tokens", TEXT | ANTHROPIC, Read),
    field("max_completion_tokens", CHAT, Read),
    field("max_output_tokens", RESPONSES, Read),
    field("stop", TEXT | RESPONSES, Read),
    field("stop_sequences", ANTHROPIC, Read),
    field("stop_token_ids", TEXT | RESPONSES, Read),
    field("ignore_eos", TEXT | RESPONSES, Read),
    field("min_tokens", TEXT, Read),
    field("include_stop_str_in_output", TEXT, Neutral(FALSE, "a stop string is not part of an answer")),
    // Structured output.
    field("response_format", CHAT | COMPLETIONS, Read),
    field("structured_outputs", TEXT | RESPONSES, Read),
    field("guided_json", TEXT, Read),
    field("guided_regex", TEXT, Read),
    field("guided_choice", TEXT, Read),
    field("guided_grammar", TEXT, Read),
    field("guided_decoding_backend", TEXT, Ignored),
    field("guided_whitespace_pattern", TEXT, Refused("the grammar decides where white space may be")),
    field("structural_tag", TEXT, Refused("use `structured_outputs`")),
    field("text", RESPONSES, Read),
    field("output_config", ANTHROPIC, Read),
    field("modalities", CHAT, Neutral(&["[\"text\"]"], TEXT_ONLY)),
    field("audio", CHAT, Refused(TEXT_ONLY)),
    field("reasoning", RESPONSES, Read),
    field("thinking", ANTHROPIC, Read),
    field("include_reasoning", CHAT, Neutral(TRUE, "reasoning is part of the answer")),
    field("thinking_token_budget", TEXT, Refused("reasoning ends where the model ends it: use `max_tokens`")),
    field("verbosity", CHAT, Ignored),
    // The contents of a response.
    field("stream", GENERATE, Read),
    field("stream_options", TEXT | RESPONSES, Read),
    field("include_usage", STREAM, Read),
    field("continuous_usage_stats", STREAM, Read),
    field("include_obfuscation", STREAM, Ignored),
    field("logprobs", TEXT, Read),
    field("top_logprobs", CHAT | RESPONSES, Read),
    field("include", RESPONSES, Read),
    field("prompt_logprobs", TEXT, Refused("use /v1/completions with `echo` and `logprobs`")),
    field("skip_special_tokens", TEXT, Neutral(TRUE, "special tokens are not part of the text")),
    field("spaces_between_special_tokens", TEXT, Ignored),
    field("return_tokens_as_token_ids", TEXT, Neutral(FALSE, "tokens are given as text")),
    field("return_token_ids", TEXT, Neutral(FALSE, "tokens are given as text")),
    field("dimensions", EMBEDDINGS, Read),
    field("encoding_format", EMBEDDINGS, Read),
    // Metadata of the client or of a provider: no token depends on it.
    field("metadata", TEXT | ANTHROPIC, Ignored),
    field("metadata", RESPONSES, Read),
    field("store", TEXT, Ignored),
    field("store", RESPONSES, Read),
    field("service_tier", GENERATE, Ignored),
    field("safety_identifier", TEXT | RESPONSES, Ignored),
    field("prompt_cache_key", TEXT | RESPONSES, Ignored),
    field("prompt_cache_options", TEXT | RESPONSES, Ignored),
    field("prompt_cache_retention", TEXT | RESPONSES, Ignored),
    field("cache_control", ANTHROPIC, Ignored),
    field("prediction", CHAT, Ignored),
    field("priority", TEXT | EMBEDDINGS, Ignored),
    field("request_id", TEXT | EMBEDDINGS, Ignored),
    field("inference_geo", ANTHROPIC, Ignored),
    field("speed", ANTHROPIC, Ignored),
    field("user_profile_id", ANTHROPIC, Ignored),
    field("workspace_id", ANTHROPIC, Ignored),
    field("diagnostics", ANTHROPIC, Ignored),
    field("client_metadata", RESPONSES, Ignored),
    field("moderation", CHAT | RESPONSES, Refused("the server has no moderation model")),
    field("access_programs", RESPONSES, Ignored),
    field("background", RESPONSES, Neutral(FALSE, OWN_SCHEDULE)),
    field("background_options", RESPONSES, Refused(OWN_SCHEDULE)),
    field("cache_salt", TEXT, Refused( "all requests share one prefix cache: start the server with --no-enable-prefix-caching", )),
    field("kv_transfer_params", TEXT, Refused("the server does not share its caches")),
    field("vllm_xargs", TEXT, Refused("it belongs to extensions of vLLM")),
    // Messages of a conversation: clients send back everything that an answer had.
    field("role", MESSAGE, Read),
    field("content", MESSAGE, Read),
    field("name", MESSAGE, Read),
    field("tool_calls", MESSAGE, Read),
    field("tool_call_id", MESSAGE, Read),
    field("reasoning_content", MESSAGE, Read),
    field("reasoning", MESSAGE, Read),
    field("refusal", MESSAGE, Read),
    field("function_call", MESSAGE, Read),
    field("annotations", MESSAGE, Ignored),
    field("parsed", MESSAGE, Ignored),
    field("reasoning_details", MESSAGE, Ignored),
    field("provider_specific_fields", MESSAGE, Ignored),
    field("cache_control", MESSAGE, Ignored),
    field("id", MESSAGE, Ignored),
    field("audio", MESSAGE, Refused("the model reads text only")),
    field("prefix", MESSAGE, Neutral(FALSE, "an answer is a separate message")),
    field("partial", MESSAGE, Neutral(FALSE, "an answer is a separate message")),
    // Schemas.
    field("schema", SCHEMA, Read),
    field("name", SCHEMA, Ignored),
    field("description", SCHEMA, Ignored),
    // Answers always follow the schema strictly.
    field("strict", SCHEMA, Ignored),
    field("type", SCHEMA, Read),
];

/// The row for a field of an API.
pub(crate) fn find(name: &str, on: Surface) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name && field.on & on != 0)
}

/// The fields of an API that have an effect, in the order of the table.
pub(crate) fn read_on(on: Surface) -> impl Iterator<Item = &'static str> {
    let read = move |field: &&Field| field.on & on != 0 && field.handling == Read;
    FIELDS.iter().filter(read).map(|field| field.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_of_an_api_has_one_row() {
        for (at, field) in FIELDS.iter().enumerate() {
            for other in &FIELDS[at + 1..] {
                let both = field.on & other.on;
                assert!(field.name != other.name || both == 0, "{} twice on {both:b}", field.name);
            }
            if let Neutral(values, _) = field.handling {
                for value in values {
                    assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{value}");
                }
            }
        }
    }
}
