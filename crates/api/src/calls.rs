//! The functions that an answer may or must call.

use crate::app::App;
use crate::error::ApiError;
use crate::parsers::Plan;
use serde_json::Value;
use serving::StructuredOutput;
use std::sync::Arc;

/// A function that may be called.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) arguments: Value,
}

/// OpenAI's `tool_choice`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
    /// This function.
    Named(String),
}

/// The functions of a request.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) functions: Arc<[Function]>,
    pub(crate) choice: Choice,
    /// Whether an answer may have several calls.
    pub(crate) parallel: bool,
}

impl Tools {
    /// The grammar that forces a call of one of these functions; `None` for [`Choice::Auto`].
    pub(crate) fn form(
        &self,
        app: &App,
        plan: Option<&Plan>,
    ) -> Result<Option<StructuredOutput>, ApiError> {
        let is_allowed = |function: &&Function| match &self.choice {
            Choice::Named(name) => function.name == *name,
            _ => true,
        };
        if self.choice == Choice::Auto {
            return Ok(None);
        }
        let functions: Vec<&Function> = self.functions.iter().filter(is_allowed).collect();
        if functions.is_empty() {
            let message = "`tool_choice` names none of the functions in `tools`";
            return Err(ApiError::field("tool_choice", message));
        }
        match plan.and_then(|plan| plan.forced(&functions, &app.texts.tokenizer)) {
            Some(form) => Ok(Some(form)),
            None => {
                let message = "`tool_choice` requires a call, and the model's chat template has no known format of calls";
                Err(ApiError::field("tool_choice", message))
            }
        }
    }
}
