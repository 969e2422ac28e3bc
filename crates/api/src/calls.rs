//! Calls of tools: read from an answer, where a model writes them in words of its own, and required of one.

use crate::app::App;
use crate::error::ApiError;
use models::{Conversation, Json, Message, Tokenizer};
use serde_json::{Value, json};
use serving::Form;

/// A call that a model makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Its place among the calls of its answer.
    pub(crate) index: usize,
    /// Where the model gives it one.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// The text of a JSON object.
    pub(crate) arguments: String,
}

/// How models write calls.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Before the first call and behind the last one; each may be a special token.
    opens: &'static str,
    closes: &'static str,
    /// Special tokens between these.
    inner: &'static [&'static str],
    /// What stands between `opens` and `closes`: id, name and arguments of each call.
    read: fn(&str) -> Option<Vec<Written>>,
    /// The same as a rule, for a function of this name whose arguments are the rule `%json ARGUMENTS`.
    write: fn(&str, &Value, &Spelling<'_>) -> String,
}

type Written = (Option<String>, String, String);

/// Every dialect; of the first whose words a chat template writes.
const DIALECTS: &[Dialect] = &[
    // Granite 4, Hermes, Qwen.
    Dialect {
        opens: "<tool_call>",
        closes: "</tool_call>",
        inner: &[],
        read: |text| {
            let call: Value = serde_json::from_str(text).ok()?;
            let arguments = match call.get("arguments")? {
                Value::String(text) => text.clone(),
                arguments => arguments.to_string(),
            };
            Some(vec![(None, call.get("name")?.as_str()?.to_owned(), arguments)])
        },
        write: |name, arguments, _| {
            let call = json!({
                "type": "object", "required": ["name", "arguments"], "additionalProperties": false,
                "properties": { "name": { "const": name }, "arguments": arguments },
            });
            format!(r#""\n" %json {call} "\n""#)
        },
    },
    // Kimi.
    Dialect {
        opens: "<|tool_calls_section_begin|>",
        closes: "<|tool_calls_section_end|>",
        inner: &[BEGINS, ARGUMENTS, ENDS],
        read: |text| text.split_terminator(ENDS).map(of_kimi).collect(),
        write: |name, arguments, spelling| {
            let [begins, between, ends] = [BEGINS, ARGUMENTS, ENDS].map(|mark| spelling.of(mark));
            let id = quoted(&format!("functions.{name}:0"));
            format!("{begins} {id} {between} %json {arguments} {ends}")
        },
    },
];

const BEGINS: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const ENDS: &str = "<|tool_call_end|>";

/// `functions.NAME:NUMBER` and the arguments.
fn of_kimi(text: &str) -> Option<Written> {
    let (id, arguments) = text.trim().strip_prefix(BEGINS)?.split_once(ARGUMENTS)?;
    let id = id.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id).split(':').next()?;
    Some((Some(id.to_owned()), name.to_owned(), arguments.trim().to_owned()))
}

/// How a grammar spells a text that may be a special token.
struct Spelling<'a>(&'a Tokenizer);

impl Spelling<'_> {
    fn of(&self, text: &str) -> String {
        match self.0.id(text).filter(|id| self.0.is_special(*id)) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Dialect {
    /// The one in which a model's chat template shows a call that was made.
    pub(crate) fn of(app: &App) -> Option<&'static Self> {
        let template = app.texts.template.as_ref().ok()?;
        let function = json!({ "name": "probe", "arguments": {} });
        let call = json!({ "id": "functions.probe:0", "type": "function", "function": function });
        let called = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        let called: Json = serde_json::from_value(called).ok()?;
        let messages = vec![Message::new("user", ""), Message::from_json(called)?];
        let text = template.render(&Conversation::to_answer(messages)).ok()?;
        DIALECTS.iter().find(|dialect| text.contains(dialect.opens))
    }

    /// Whether a special token is one of its words.
    pub(crate) fn has(&self, word: &str) -> bool {
        [self.opens, self.closes].contains(&word) || self.inner.contains(&word)
    }

    /// An answer that calls one of these functions: names, and the schemas of their arguments.
    fn form(&self, functions: &[&Function], tokenizer: &Tokenizer) -> Form {
        let spelling = Spelling(tokenizer);
        let [opens, closes] = [self.opens, self.closes].map(|word| spelling.of(word));
        let calls = functions.iter().enumerate().map(|(at, function)| {
            let call = (self.write)(&function.name, &function.arguments, &spelling);
            format!("call_{at}: {call}\n")
        });
        let rules: String = calls.collect();
        let names: Vec<String> = (0..functions.len()).map(|at| format!("call_{at}")).collect();
        Form::Lark(format!("start: {opens} ({}) {closes}\n{rules}", names.join(" | ")))
    }
}

/// A function that may be called.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) arguments: Value,
}

/// Which functions an answer calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Those that the model calls by itself.
    Auto,
    /// One of them.
    Required,
    /// This one.
    Named(String),
}

/// The functions of a request.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) functions: Vec<Function>,
    pub(crate) choice: Choice,
}

impl Tools {
    /// What an answer has to be that must call.
    pub(crate) fn form(&self, app: &App) -> Result<Option<Form>, ApiError> {
        let meant = |function: &&Function| match &self.choice {
            Choice::Named(name) => function.name == *name,
            _ => true,
        };
        if self.choice == Choice::Auto {
            return Ok(None);
        }
        let functions: Vec<&Function> = self.functions.iter().filter(meant).collect();
        if functions.is_empty() {
            let message = "`tool_choice` names none of the functions in `tools`";
            return Err(ApiError::field("tool_choice", message));
        }
        let Some(dialect) = app.dialect() else {
            let message = "`tool_choice` wants a call, which the model's chat template cannot show";
            return Err(ApiError::field("tool_choice", message));
        };
        Ok(Some(dialect.form(&functions, &app.texts.tokenizer)))
    }
}

/// Reads calls from an answer as its text comes.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) dialect: &'static Dialect,
    held: String,
    count: usize,
}

/// What an answer says: text that calls nothing, and calls.
pub(crate) type Said = (String, Vec<Call>);

impl Reader {
    pub(crate) fn new(dialect: &'static Dialect) -> Self {
        Self { dialect, held: String::new(), count: 0 }
    }

    /// Whether something was called.
    pub(crate) fn called(&self) -> bool {
        self.count > 0
    }

    /// More of the text. What may become a call is held back.
    pub(crate) fn push(&mut self, more: &str) -> Said {
        let Dialect { opens, closes, .. } = self.dialect;
        self.held.push_str(more);
        let (mut text, mut calls) = (String::new(), Vec::new());
        while let Some(begin) = self.held.find(opens) {
            let inside = begin + opens.len();
            let Some(length) = self.held[inside..].find(closes) else {
                text.extend(self.held.drain(..begin));
                return (text, calls);
            };
            let (end, behind) = (inside + length, inside + length + closes.len());
            match (self.dialect.read)(&self.held[inside..end]) {
                Some(written) => {
                    text.push_str(&self.held[..begin]);
                    calls.extend(written.into_iter().map(|(id, name, arguments)| {
                        self.count += 1;
                        Call { index: self.count - 1, id, name, arguments }
                    }));
                }
                // No call after all.
                None => text.push_str(&self.held[..behind]),
            }
            self.held.drain(..behind);
        }
        // The end may be the beginning of a call.
        let ends = |length: &usize| {
            self.held.is_char_boundary(self.held.len() - length)
                && opens.starts_with(&self.held[self.held.len() - length..])
        };
        let kept = (1..opens.len().min(self.held.len() + 1)).rev().find(ends).unwrap_or(0);
        text.extend(self.held.drain(..self.held.len() - kept));
        (text, calls)
    }

    /// The rest, when no more comes: what is no whole call is text.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dialect: usize, texts: &[&str]) -> Said {
        let mut reader = Reader::new(&DIALECTS[dialect]);
        let (mut text, mut calls) = (String::new(), Vec::new());
        for more in texts {
            let said = reader.push(more);
            text += &said.0;
            calls.extend(said.1);
        }
        (text + &reader.finish(), calls)
    }

    fn call(index: usize, id: Option<&str>, name: &str, arguments: &str) -> Call {
        let id = id.map(str::to_owned);
        Call { index, id, name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let granite = "Let me look.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"</x>\"}}\n</tool_call> and <tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>";
        let kimi = format!(
            "Ja<|tool_calls_section_begin|>{BEGINS}functions.f:0{ARGUMENTS}{{\"a\": 1}}{ENDS}{BEGINS}functions.g:1{ARGUMENTS}{{}}{ENDS}<|tool_calls_section_end|>"
        );
        let of_granite = [call(0, None, "f", r#"{"b":1,"a":"</x>"}"#), call(1, None, "g", "{}")];
        let of_kimi = [
            call(0, Some("functions.f:0"), "f", "{\"a\": 1}"),
            call(1, Some("functions.g:1"), "g", "{}"),
        ];
        for (dialect, whole, text, calls) in
            [(0, granite, "Let me look. and ", of_granite), (1, &kimi, "Ja", of_kimi)]
        {
            assert_eq!(read(dialect, &[whole]), (text.to_owned(), calls.to_vec()));
            for at in 0..whole.len() {
                assert_eq!(read(dialect, &[&whole[..at], &whole[at..]]).1, calls, "cut at {at}");
            }
            let letters: Vec<String> = whole.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(read(dialect, &letters), (text.to_owned(), calls.to_vec()));
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "a < b, <tool_cal",
            "<tool_call>{\"name\": \"f\"",
            "<tool_call>nothing</tool_call> at all",
            "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
            "Zürich <tool_callß",
        ] {
            assert_eq!(read(0, &[text]), (text.to_owned(), Vec::new()));
        }
        // Text goes out as soon as it can be no call.
        let mut reader = Reader::new(&DIALECTS[0]);
        assert_eq!(reader.push("say <tool"), ("say ".to_owned(), Vec::new()));
        assert_eq!(reader.push("box"), ("<toolbox".to_owned(), Vec::new()));
    }
}
