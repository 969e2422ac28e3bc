//! Chat templates, rendered as transformers' `apply_chat_template` does.

mod arguments;
mod environment;
mod filters;
mod json;
mod methods;
mod objects;
mod process;
mod python;
mod source;
mod strftime;
mod wire;

use crate::gguf::{self, is_gguf};
use crate::{ModelError, read_json, read_text};
pub use arguments::call_arguments;
use facts::CompactSort;
pub use json::{ChatMessage, Json};
use minijinja::{Environment, Value};
use process::Pool;
pub use process::{MAX_CONCURRENT_RENDERS, TemplateProcess, render_templates};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The input of a chat template.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// At least one message.
    pub messages: Vec<ChatMessage>,
    /// JSON schemas of the functions that the model may call. With a list, even an empty one, a template named
    /// `tool_use` is preferred.
    pub tools: Option<Vec<Json>>,
    /// Documents for retrieval, each an object, usually with `title` and `text`.
    pub documents: Option<Vec<Json>>,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Whether the text ends inside the last message, which the model continues.
    pub continue_final_message: bool,
    /// Name of a template, for models with several; `None` for the usual choice.
    pub template: Option<String>,
    /// Other variables of the template, clients' `chat_template_kwargs`. They take precedence over the special tokens.
    pub kwargs: Vec<(String, Json)>,
}

impl Conversation {
    /// A conversation for the assistant to answer.
    pub fn to_answer(messages: Vec<ChatMessage>) -> Self {
        Self { messages, add_generation_prompt: true, ..Self::default() }
    }
}

/// A model's chat templates: one, or several with names.
#[derive(Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    sources: Vec<String>,
    renderer: Renderer,
}

/// The process that renders templates.
#[derive(Debug)]
enum Renderer {
    InProcess(Box<Templates>),
    Subprocesses(Pool),
}

/// Parsed templates.
#[derive(Debug)]
struct Templates {
    environment: Environment<'static>,
    /// Parse results by name; an error only matters when its template is used.
    names: BTreeMap<String, Result<(), String>>,
    /// The special tokens that templates may use.
    tokens: Vec<(&'static str, String)>,
}

/// A model's templates, not parsed yet.
struct Sources {
    path: PathBuf,
    templates: Vec<(String, String)>,
    tokens: Vec<(&'static str, String)>,
}

/// The default template.
const DEFAULT: &str = "default";
/// The template for conversations with tools.
const TOOL_USE: &str = "tool_use";
/// The text appended to the last message to find its end in the output, as in transformers.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatTemplate {
    /// Reads the templates of a model's folder: chat_template.jinja and those in additional_chat_templates, otherwise
    /// those of its tokenizer_config.json or of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError::NoTemplate`] when there is none.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let Sources { path, templates, tokens } = Sources::read(folder)?;
        let sources = templates.iter().map(|(_, source)| source.clone()).collect();
        let renderer = Renderer::InProcess(Box::new(Templates::parse(templates, tokens)));
        Ok(Self { path, sources, renderer })
    }

    /// The templates, rendered in separate processes with limits of time and memory, for untrusted templates and
    /// conversations.
    ///
    /// # Errors
    /// As [`ChatTemplate::read`].
    pub fn read_sandboxed(folder: &Path, process: TemplateProcess) -> Result<Self, ModelError> {
        let Sources { path, templates, .. } = Sources::read(folder)?;
        let sources = templates.into_iter().map(|(_, source)| source).collect();
        let folder =
            std::path::absolute(folder).map_err(|error| ModelError::file(folder, error))?;
        Ok(Self { path, sources, renderer: Renderer::Subprocesses(Pool::new(process, &folder)) })
    }

    /// Whether the source of some template contains a text.
    pub fn contains(&self, text: &str) -> bool {
        self.sources.iter().any(|source| source.contains(text))
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`ModelError::Template`] with the template's own message if it refuses the conversation, with transformers'
    /// message if the conversation is invalid, or naming the limit that was exceeded.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ModelError> {
        let rendered = match &self.renderer {
            Renderer::InProcess(templates) => templates.render(conversation),
            Renderer::Subprocesses(pool) => pool.render(conversation),
        };
        rendered.map_err(|(what, hint)| ModelError::Template {
            path: self.path.display().to_string(),
            what,
            hint,
        })
    }
}

impl Sources {
    fn read(folder: &Path) -> Result<Self, ModelError> {
        let (jinja, config) =
            (folder.join("chat_template.jinja"), folder.join("tokenizer_config.json"));
        let in_file = is_gguf(folder);
        let settings = match (in_file, config.exists()) {
            (true, _) => gguf::settings(folder)?,
            (false, true) => read_json(&config)?,
            (false, false) => serde_json::Value::Null,
        };
        // A token is a string, or an object with its content.
        let token = |name: &'static str| {
            let token = settings.get(name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some((name, text.to_owned()))
        };
        let tokens = [
            "bos_token",
            "eos_token",
            "unk_token",
            "sep_token",
            "pad_token",
            "cls_token",
            "mask_token",
        ];
        let tokens = tokens.into_iter().filter_map(token).collect();
        let mut found: Vec<(String, String)> = Vec::new();
        if jinja.exists() {
            found.push((DEFAULT.to_owned(), read_text(&jinja)?));
        }
        for file in files(&folder.join("additional_chat_templates"))? {
            let name = file.file_stem().map(|name| name.to_string_lossy().into_owned());
            found.push((name.unwrap_or_default(), read_text(&file)?));
        }
        let path = match (in_file, found.is_empty()) {
            (true, _) => folder.to_owned(),
            (false, true) => config,
            (false, false) => jinja.clone(),
        };
        if found.is_empty() {
            // Either one template or several with names.
            found = match settings.get("chat_template") {
                Some(serde_json::Value::Array(named)) => {
                    let text = |entry: &serde_json::Value, key: &str| {
                        Some(entry.get(key)?.as_str()?.to_owned())
                    };
                    named
                        .iter()
                        .filter_map(|entry| Some((text(entry, "name")?, text(entry, "template")?)))
                        .collect()
                }
                Some(serde_json::Value::String(one)) => vec![(DEFAULT.to_owned(), one.clone())],
                _ => Vec::new(),
            };
        }
        if found.is_empty() {
            return Err(ModelError::NoTemplate { path: jinja.display().to_string() });
        }
        Ok(Self { path, templates: found, tokens })
    }
}

impl Templates {
    fn parse(sources: Vec<(String, String)>, tokens: Vec<(&'static str, String)>) -> Self {
        let mut environment = environment::environment();
        let mut names = BTreeMap::new();
        for (name, text) in sources {
            let parsed = environment.add_template_owned(name.clone(), source::prepared(&text));
            names.insert(name, parsed.map_err(|error| error.to_string()));
        }
        Self { environment, names, tokens }
    }

    /// Renders a conversation. The error is the problem and what to do about it.
    fn render(&self, conversation: &Conversation) -> Result<String, (String, String)> {
        let wrong = |what: String, hint: &str| (what, hint.to_owned());
        let Conversation { messages, tools, documents, add_generation_prompt, .. } = conversation;
        if messages.is_empty() {
            return Err(wrong("the conversation has no messages".to_owned(), "give at least one"));
        }
        let name = self.choose(conversation).map_err(|what| {
            let names: Vec<&str> = self.names.keys().map(String::as_str).collect();
            wrong(what, &format!("the model's templates are {}", names.join(", ")))
        })?;
        let mut messages: Vec<Value> = messages.iter().map(ChatMessage::value).collect();
        let last = match (conversation.continue_final_message, add_generation_prompt) {
            (true, true) => {
                let what = "the last message is to be continued, and a new one begun";
                return Err(wrong(what.to_owned(), "ask for one of them"));
            }
            (true, false) => Some(mark_last(&mut messages).ok_or_else(|| {
                let what = "the last message has no text to continue";
                wrong(what.to_owned(), "its content is a string, or a list with a part of text")
            })?),
            (false, _) => None,
        };
        let list = |list: &Option<Vec<Json>>| {
            let values = |all: &Vec<Json>| objects::list(all.iter().map(Json::value).collect());
            list.as_ref().map_or(Value::from(()), values)
        };
        let fixed = [
            ("messages", objects::list(messages)),
            ("tools", list(tools)),
            ("documents", list(documents)),
            ("add_generation_prompt", Value::from(*add_generation_prompt)),
        ];
        if let Some((key, _)) =
            conversation.kwargs.iter().find(|(key, _)| fixed.iter().any(|(name, _)| key == name))
        {
            let hint = "it has a separate field";
            return Err(wrong(format!("`{key}` is no argument of a chat template's own"), hint));
        }
        let tokens = self
            .tokens
            .iter()
            .map(|(name, token)| ((*name).to_owned(), Value::from(token.as_str())));
        let kwargs = conversation.kwargs.iter().map(|(key, value)| (key.clone(), value.value()));
        let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
        // On duplicate names the last one counts.
        let context: Value = tokens.chain(kwargs).chain(fixed).collect();
        let template = self.environment.get_template(name);
        let rendered = template.and_then(|template| template.render(context));
        let text = rendered.map_err(|error| {
            wrong(
                format!("the template fails: {error}"),
                "use -p with the text as the model expects it",
            )
        })?;
        match last {
            None => Ok(text),
            Some(last) => continued(&text, &last).ok_or_else(|| {
                let what = "the last message does not appear in the text as it was given";
                wrong(what.to_owned(), "this template cannot continue a message")
            }),
        }
    }

    /// The template's name for a conversation, as in transformers' `get_chat_template`.
    fn choose<'a>(&'a self, conversation: &'a Conversation) -> Result<&'a str, String> {
        let name = match &conversation.template {
            Some(name) => name.as_str(),
            None if conversation.tools.is_some() && self.names.contains_key(TOOL_USE) => TOOL_USE,
            None => DEFAULT,
        };
        match self.names.get(name) {
            Some(Ok(())) => Ok(name),
            Some(Err(error)) => Err(format!("the template {name} cannot be read: {error}")),
            None => Err(format!("there is no template {name}")),
        }
    }
}

/// The templates in an optional folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).map_err(|error| ModelError::file(folder, error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jinja"));
    files.compact_sort();
    Ok(files)
}

/// Marks the end of the last message's text, or of its last part that has text; returns that text.
fn mark_last(messages: &mut [Value]) -> Option<String> {
    let message = messages.last_mut()?;
    let with = |object: &Value, key: &str, value: Value| -> Option<Value> {
        let pairs = object.as_object()?.try_iter_pairs()?;
        let replaced = |(name, old): (Value, Value)| {
            let new = if name.as_str() == Some(key) { value.clone() } else { old };
            Some((name.as_str()?.to_owned(), new))
        };
        let pairs: Option<Vec<_>> = pairs.map(replaced).collect();
        Some(objects::dictionary(pairs?))
    };
    let marked = |text: &str| Value::from(format!("{text}{MARK}"));
    let content = message.get_attr("content").ok()?;
    let (text, content) = match content.as_str() {
        Some(text) => (text.to_owned(), marked(text)),
        None => {
            let mut parts: Vec<Value> = content.try_iter().ok()?.collect();
            let has = |part: &Value| part.get_attr("text").ok()?.as_str().map(str::to_owned);
            let (part, text) = parts
                .iter_mut()
                .rev()
                .find_map(|part| Some((has(part)?, part)))
                .map(|(text, part)| (part, text))?;
            *part = with(part, "text", marked(&text))?;
            (text, objects::list(parts))
        }
    };
    *message = with(message, "content", content)?;
    Some(text)
}

/// The text up to the mark. A template that strips its messages has also stripped the mark's trailing space.
fn continued(text: &str, last: &str) -> Option<String> {
    let at = text.rfind(MARK.trim_end())?;
    if !text.contains(last.trim_matches(python::is_space)) {
        return None;
    }
    let before = &text[..at];
    let whole = text[at..].starts_with(MARK);
    Some(if whole { before } else { before.trim_end_matches(python::is_space) }.to_owned())
}

#[cfg(test)]
mod tests;
