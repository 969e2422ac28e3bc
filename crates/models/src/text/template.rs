use super::tokenizer::{read_json, read_text};
use crate::ModelError;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    template: String,
    /// The special tokens that templates name.
    tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Reads chat_template.jinja of a model's folder, or the template in its tokenizer_config.json.
    ///
    /// # Errors
    /// [`ModelError::File`] when there is neither.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let (jinja, config) =
            (folder.join("chat_template.jinja"), folder.join("tokenizer_config.json"));
        let settings = if config.exists() { read_json(&config)? } else { Value::Null };
        // A token is a string, or an object with its content.
        let token = |name: &'static str| {
            let token = settings.get(name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some((name, text.to_owned()))
        };
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"];
        let tokens = tokens.into_iter().filter_map(token).collect();
        if jinja.exists() {
            return Ok(Self { template: read_text(&jinja)?, path: jinja, tokens });
        }
        // Either one template, or several with names, of which one is the default.
        let template = settings.get("chat_template").and_then(|template| match template {
            Value::Array(named) => {
                named.iter().find(|entry| entry["name"] == "default")?.get("template")?.as_str()
            }
            one => one.as_str(),
        });
        match template {
            Some(template) => Ok(Self { template: template.to_owned(), path: config, tokens }),
            None => Err(ModelError::file(
                &jinja,
                "there is no chat template, here or in tokenizer_config.json",
            )
            .hinted("a base model has none: use -p in place of --chat")),
        }
    }

    /// A conversation as text, up to where the assistant's answer begins.
    ///
    /// # Errors
    /// [`ModelError::File`] with the template's own words, where it refuses the conversation.
    pub fn render(&self, messages: &[Message]) -> Result<String, ModelError> {
        let mut environment = Environment::new();
        // As transformers sets Jinja up.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let raise =
            |message: String| Err::<String, _>(Error::new(ErrorKind::InvalidOperation, message));
        environment.add_function("raise_exception", raise);
        environment.add_function("strftime_now", strftime_now);
        for (name, token) in &self.tokens {
            environment.add_global(*name, token.clone());
        }
        let messages: Vec<_> = messages
            .iter()
            .map(|message| context! { role => message.role, content => message.content })
            .collect();
        let rendered = environment.template_from_str(&self.template).and_then(|template| {
            template.render(context! { messages, add_generation_prompt => true })
        });
        rendered
            .map_err(|error| ModelError::file(&self.path, format!("the template fails: {error}")))
            .map_err(|error| error.hinted("use -p with the text as the model expects it"))
    }
}

/// The date as templates ask for it, by the few letters of strftime that stand in published ones.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = OffsetDateTime::now_utc();
    let month = now.month().to_string();
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        match (letter, (letter == '%').then(|| letters.next()).flatten()) {
            ('%', Some('Y')) => out += &now.year().to_string(),
            ('%', Some('m')) => out += &format!("{:02}", u8::from(now.month())),
            ('%', Some('d')) => out += &format!("{:02}", now.day()),
            ('%', Some('B')) => out += &month,
            ('%', Some('b')) => out += &month[..3],
            ('%', other) => {
                let what = format!("strftime_now has no %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
            (plain, _) => out.push(plain),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of Kimi's own template, with what others use besides.
    const TEMPLATE: &str = "{%- for message in messages -%}\n\
        {%- if message.role not in ['system', 'user', 'assistant'] -%}{{ raise_exception('no role ' + message.role) }}{%- endif -%}\n\
        <|im_{{ message.role }}|>{{ message['role'] }}<|im_middle|>{{ message.content.strip() }}<|im_end|>\n\
        {%- endfor -%}\n\
        {%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}{{ eos_token }}";

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.to_owned(), content: content.to_owned() }
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files
            .iter()
            .for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    #[test]
    fn conversations_become_text() {
        let config = r#"{"eos_token": {"content": "<E>"}}"#;
        let named = serde_json::json!({
            "eos_token": "<E>",
            "chat_template": [{ "name": "tools", "template": "" }, { "name": "default", "template": TEMPLATE }],
        });
        for files in [
            vec![("chat_template.jinja", TEMPLATE), ("tokenizer_config.json", config)],
            vec![("tokenizer_config.json", named.to_string().as_str())],
        ] {
            let folder = folder(&files);
            let template = ChatTemplate::read(folder.path()).unwrap();
            assert_eq!(
                template.render(&[message("system", "be brief "), message("user", "hi")]).unwrap(),
                "<|im_system|>system<|im_middle|>be brief<|im_end|><|im_user|>user<|im_middle|>hi<|im_end|>\
                 <|im_assistant|>assistant<|im_middle|><E>"
            );
            let error = template.render(&[message("robot", "x")]).unwrap_err().to_string();
            assert!(
                error.contains("the template fails: ") && error.contains("no role robot"),
                "{error}"
            );
        }
    }

    #[test]
    fn dates_are_written_as_asked() {
        let today = strftime_now("%Y-%m-%d").unwrap();
        assert_eq!((today.len(), &today[..2]), (10, "20"));
        assert!(strftime_now("%B %d, %Y").unwrap().contains(", 20"));
        assert!(strftime_now("%Q").unwrap_err().to_string().contains("no %Q"));
    }

    #[test]
    fn a_model_without_a_template_says_so() {
        for files in [&[][..], &[("tokenizer_config.json", "{}")]] {
            let folder = folder(files);
            let error = ChatTemplate::read(folder.path()).unwrap_err().to_string();
            assert!(
                error.ends_with("there is no chat template, here or in tokenizer_config.json"),
                "{error}"
            );
        }
    }
}
