//! `firstlight render-templates`, hidden: renders a model's chat templates in a separate process, with limits of time
//! and memory.

use crate::Outcome;
use crate::cli::RenderTemplates;
use crate::own_program::own_program;
use crate::stopping;
use models::{ChatTemplate, ModelError, TemplateProcess, render_templates};
use std::path::Path;

pub(super) fn run(arguments: &RenderTemplates) -> anyhow::Result<Outcome> {
    // Ctrl-C reaches all processes of a terminal; this one exits when its input ends.
    stopping::not_by_signals()?;
    render_templates(&arguments.model, std::io::stdin().lock(), std::io::stdout())?;
    Ok(Outcome::Good)
}

/// A model's chat templates, rendered by processes of this program.
pub(super) fn by_this_program(folder: &Path) -> Result<ChatTemplate, ModelError> {
    match own_program() {
        Some(program) => {
            let arguments = vec!["render-templates".to_owned()];
            ChatTemplate::read_sandboxed(folder, TemplateProcess { program, arguments })
        }
        None => ChatTemplate::read(folder),
    }
}
