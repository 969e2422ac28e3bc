//! The prompts of `run`, as token ids.

use super::ContextLimit;
use crate::cli::Run;
use crate::commands::render_templates;
use crate::failure::Failure;
use crate::output::Output;
use crate::tokenizer;
use models::{ChatMessage, Conversation, Encoded, Json, ModelError, Tokenizer};
use std::io::{IsTerminal, Read};
use std::path::Path;

/// The model's tokenizer; none if token ids are given and there is none.
pub(super) fn read_tokenizer(
    arguments: &Run,
    folder: &Path,
    vocabulary: usize,
) -> anyhow::Result<Option<Tokenizer>> {
    let tokenizer = match Tokenizer::read(folder) {
        Ok(tokenizer) => tokenizer,
        Err(_) if !arguments.ids.is_empty() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    tokenizer::check(&tokenizer, vocabulary)?;
    Ok(Some(tokenizer))
}

/// The request to the model.
pub(super) enum PromptRequest {
    /// The token ids of --ids.
    Ids,
    /// Texts to continue.
    Texts(Vec<String>),
    /// A message to answer; a model without a chat template continues it if `or_continue` is set.
    Message { text: String, or_continue: bool },
}

/// Whether there is no prompt and both input and output are a terminal.
pub(super) fn is_for_chat(arguments: &Run, output: &Output) -> bool {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    asks_nothing(arguments) && terminal && !output.json
}

fn asks_nothing(arguments: &Run) -> bool {
    let Run { text, prompt, chat, ids, .. } = arguments;
    text.is_empty() && prompt.is_empty() && chat.is_none() && ids.is_empty()
}

/// The prompt, read from standard input if the arguments select it or have none.
///
/// # Errors
/// There is no prompt, or standard input cannot be read.
pub(super) fn read(arguments: &Run) -> anyhow::Result<PromptRequest> {
    let Run { text, prompt, chat, ids, .. } = arguments;
    if !ids.is_empty() {
        return Ok(PromptRequest::Ids);
    }
    if let Some(text) = chat {
        return Ok(PromptRequest::Message { text: from_input_if_dash(text)?, or_continue: false });
    }
    if !prompt.is_empty() {
        if prompt.iter().filter(|text| *text == "-").count() > 1 {
            return Err(Failure::hinted("standard input is one prompt", "use -p - once"));
        }
        let texts: Result<_, _> = prompt.iter().map(|text| from_input_if_dash(text)).collect();
        return Ok(PromptRequest::Texts(texts?));
    }
    let text = match text.is_empty() {
        false => from_input_if_dash(&text.join(" "))?,
        true if std::io::stdin().is_terminal() => return Err(no_prompt()),
        true => input()?,
    };
    match text.is_empty() && asks_nothing(arguments) {
        true => Err(no_prompt()),
        false => Ok(PromptRequest::Message { text, or_continue: true }),
    }
}

fn no_prompt() -> anyhow::Error {
    let hint = "`firstlight run MODEL 'TEXT'`, -p TEXT to continue a text, or pipe it into the command; `firstlight chat MODEL` begins a chat";
    Failure::hinted("there is no prompt", hint)
}

fn from_input_if_dash(text: &str) -> anyhow::Result<String> {
    if text == "-" { input() } else { Ok(text.to_owned()) }
}

/// All of standard input, without the final line break.
fn input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::InvalidData => "convert the text to UTF-8, for example with iconv",
            _ => "give the text with -p",
        };
        Failure::hinted(format!("standard input cannot be read: {error}"), hint)
    })?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// Token ids of the prompts. A prompt that exceeds the context is detected before all of it is encoded.
pub(super) fn prompts(
    asked: &PromptRequest,
    arguments: &Run,
    folder: &Path,
    tokenizer: Option<&Tokenizer>,
    limit: ContextLimit,
) -> anyhow::Result<Vec<Vec<u32>>> {
    let (Some(tokenizer), false) = (tokenizer, matches!(asked, PromptRequest::Ids)) else {
        return Ok(vec![arguments.ids.clone()]);
    };
    let texts = match asked {
        PromptRequest::Ids => Vec::new(),
        PromptRequest::Texts(texts) => texts.clone(),
        PromptRequest::Message { text, or_continue } => {
            let needs_template = arguments.system.is_some() || arguments.tools.is_some();
            match render_templates::by_this_program(folder) {
                // A template that cannot be read is a different error.
                Err(ModelError::NoTemplate { .. }) if *or_continue && !needs_template => {
                    vec![text.clone()]
                }
                template => {
                    let system =
                        arguments.system.iter().map(|text| ChatMessage::new("system", text));
                    let messages = system.chain([ChatMessage::new("user", text)]).collect();
                    let tools = arguments.tools.as_deref().map(read_tools).transpose()?;
                    let asked = Conversation { tools, ..Conversation::to_answer(messages) };
                    vec![template?.render(&asked)?]
                }
            }
        }
    };
    let encode = |text: &String| match tokenizer.encode_up_to(text, false, limit.tokens)? {
        Encoded::Ids(ids) => Ok(ids),
        Encoded::AtLeast(count) => Err(limit.prompt_too_long(count)),
    };
    texts.iter().map(encode).collect()
}

/// The functions in a file.
fn read_tools(file: &Path) -> anyhow::Result<Vec<Json>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| anyhow::Error::from(error).context(format!("{shown}")))?;
    let wrong = |what: String| {
        let hint = r#"expected a list: [{"type": "function", "function": {"name": .., "parameters": ..}}]"#;
        Failure::hinted(what, hint)
    };
    let tools: Json = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("{shown} is not JSON: {error}")))?;
    let tools = tools.items().ok_or_else(|| wrong(format!("{shown} has no list of tools")))?;
    match tools.iter().position(|tool| !tool.is_object()) {
        Some(at) => Err(wrong(format!("{shown}: tool {} is not an object", at + 1))),
        None => Ok(tools),
    }
}
