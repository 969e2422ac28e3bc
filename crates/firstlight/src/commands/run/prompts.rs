//! What `run` was asked, as token ids.

use crate::cli::Run;
use crate::commands::render_templates;
use crate::failure::Failure;
use crate::tokenizer;
use models::{Conversation, Json, Message, Tokenizer};
use std::path::Path;

/// The model's tokenizer; none where token ids are given and there is none.
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

/// Token ids of what was asked.
pub(super) fn prompts(
    arguments: &Run,
    folder: &Path,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<Vec<Vec<u32>>> {
    let Some(tokenizer) = tokenizer else { return Ok(vec![arguments.ids.clone()]) };
    let texts = match &arguments.chat {
        None if !arguments.ids.is_empty() => return Ok(vec![arguments.ids.clone()]),
        None => arguments.prompt.clone(),
        Some(asked) => {
            let system = arguments.system.iter().map(|text| Message::new("system", text));
            let messages = system.chain([Message::new("user", asked)]).collect();
            let tools = arguments.tools.as_deref().map(read_tools).transpose()?;
            let asked = Conversation { tools, ..Conversation::to_answer(messages) };
            vec![render_templates::by_this_program(folder)?.render(&asked)?]
        }
    };
    let ids: Result<Vec<_>, _> = texts.iter().map(|text| tokenizer.encode(text)).collect();
    Ok(ids?)
}

/// The functions that a file describes.
fn read_tools(file: &Path) -> anyhow::Result<Vec<Json>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| anyhow::Error::from(error).context(format!("{shown}")))?;
    let wrong = |what: String| {
        let hint = r#"wanted is a list: [{"type": "function", "function": {"name": .., "parameters": ..}}]"#;
        Failure::hinted(what, hint)
    };
    let tools: Json = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("{shown} is not JSON: {error}")))?;
    let tools = tools.items().ok_or_else(|| wrong(format!("{shown} has no list of tools")))?;
    match tools.iter().position(|tool| !tool.is_object()) {
        Some(at) => Err(wrong(format!("{shown}: tool {} is no object", at + 1))),
        None => Ok(tools),
    }
}
