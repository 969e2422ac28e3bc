//! `firstlight chat`: a conversation with a model, in the terminal or through a pipe.

mod answer;
mod input;
mod session;
mod words;

use crate::backend::{self, OpenedDevice};
use crate::cli::{self, Chat};
use crate::commands::render_templates;
use crate::failure::{self, Failure};
use crate::hub;
use crate::loading::{self, Loaded};
use crate::output::Output;
use crate::rank_processes::{RankProcesses, first_of};
use crate::stopping;
use crate::tokenizer;
use crate::{Outcome, output};
use device::Device;
use facts::SCHEMA;
use input::{Input, InputEvent};
use models::{
    Capacity, ChatTemplate, LargestStep, Model, Sampling, Scheduler, StepBudget, Tokenizer,
};
use serde_json::json;
use session::{Session, Settings};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use words::ChatLine;

/// Default context length of a conversation.
const CONTEXT: usize = 16_384;

const HELP: &str = "\
/reset         starts a new conversation
/system TEXT   sets the system message; without TEXT shows it
/help          shows this list
/exit, /bye    quits, as do exit, Ctrl-D and pressing Ctrl-C twice

A line that ends with \\ continues on the next one; \"\"\" starts and ends a
message of several lines. Ctrl-C stops an answer.
";

pub(super) fn run(arguments: &Chat, output: &Output) -> anyhow::Result<Outcome> {
    let output = &output.quiet(arguments.quiet);
    // Invalid settings are reported before the model is loaded.
    Sampling::from(&arguments.choice).check()?;
    let place = first_of(arguments.split, arguments.backend)?;
    let choice = backend::begin(arguments.backend);
    let folder = hub::locate(&arguments.named)?;
    let model = Model::read(&folder)?.with_scan_states(arguments.states.held())?.part(place)?;
    let family = model.architecture.family;
    let tokenizer = read_tokenizer(&folder, model.architecture.vocabulary)?;
    let template = read_template(&folder)?;
    let longest = model.architecture.context;
    let context = asked_context(arguments.context, longest)?.unwrap_or(CONTEXT.min(longest));
    let capacity = Capacity { sequences: 1, tokens: context };
    let step_of = |device: &Device| -> anyhow::Result<LargestStep> {
        Ok(LargestStep { tokens: models::engine_kind(device)?.chunk.min(context), logits: 1 })
    };
    let dtype = arguments.dtype.into();
    let fit = |device: &Device| {
        let step = step_of(device)?;
        loading::fit(&model.architecture, device, dtype, (capacity, step)).map(|_| ())
    };
    let OpenedDevice { device, device_notice, .. } = choice.end(fit)?;
    device_notice.notice(output);
    let step = step_of(&device)?;
    let other_ranks = RankProcesses::start(place.ranks, device_notice.backend())?;
    let split = (other_ranks.as_ref(), &*folder);
    let Loaded { mut engine, .. } =
        loading::open_on(split, model, device, dtype, (capacity, step))?;
    let best = engine.budget();
    let budget = StepBudget { tokens: best.tokens.min(context), ..best };
    let mut input = Input::open(output.json)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    if input.is_terminal() {
        // In a pipe, Ctrl-C ends the command as usual.
        stopping::on_interrupt(&interrupted)?;
    }
    if output.json {
        let first = json!({ "schema": SCHEMA, "device": device_notice, "family": family, "context_tokens": context });
        output.text(&first.to_string())?;
    } else {
        output.notice(|_| {
            format!("{family}, {context} tokens of context; /help lists commands, Ctrl-D ends\n")
        });
    }
    let settings = Settings {
        sampling: (&arguments.choice).into(),
        stop_ids: match &arguments.choice.stop_ids {
            Some(ids) => ids.clone(),
            None => models::stop_ids(&folder, Some(&tokenizer))?,
        },
        stops: arguments.choice.stop.clone(),
        limit: arguments.tokens,
        context,
    };
    let scheduler = Scheduler::new(&mut *engine, budget);
    let mut session = Session::new(scheduler, &tokenizer, &template, settings);
    session.set_system(arguments.system.clone());
    converse(&mut session, &mut input, output, &interrupted)
}

/// Reads and answers messages until the input ends; bad if a message of a pipe could not be answered.
fn converse(
    session: &mut Session<'_, '_>,
    input: &mut Input,
    output: &Output,
    interrupted: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Good;
    let mut was_interrupted = false;
    loop {
        let text = match input.read()? {
            InputEvent::Message(text) => text,
            InputEvent::Interrupted if was_interrupted => return Ok(outcome),
            InputEvent::Interrupted => {
                was_interrupted = true;
                print_reply(
                    output,
                    "Ctrl-C again, Ctrl-D or /exit quits, /reset starts a new conversation",
                );
                continue;
            }
            InputEvent::End => return Ok(outcome),
        };
        was_interrupted = false;
        let done = match words::of(&text) {
            ChatLine::Nothing => Ok(()),
            ChatLine::Exit => return Ok(outcome),
            ChatLine::Help => {
                print_reply(output, HELP);
                Ok(())
            }
            ChatLine::Reset => {
                session.reset();
                print_reply(output, "started a new conversation");
                Ok(())
            }
            ChatLine::System(text) => {
                session.set_system(Some(text));
                print_reply(output, "the system message is set");
                Ok(())
            }
            ChatLine::ShowSystem => {
                print_reply(output, session.system().unwrap_or("there is no system message"));
                Ok(())
            }
            ChatLine::Unknown(word) => {
                let what = format!("there is no command {word}");
                Err(Failure::hinted(
                    what,
                    "/help lists the commands; start the line with a space to send it as a message",
                ))
            }
            ChatLine::Say(text) => {
                let answered = session.answer(text, output, interrupted);
                answered.and_then(|answer| answer.print(output))
            }
        };
        match done {
            Err(error) if error.downcast_ref::<output::OutputError>().is_some() => {
                return Err(error);
            }
            // A failed engine has lost more than this answer.
            Err(error) if session.is_broken() => return Err(error),
            Err(error) => {
                failure::print(&error, output);
                if !input.is_terminal() {
                    outcome = Outcome::Bad;
                }
            }
            Ok(()) => {}
        }
    }
}

/// Prints a chat command's reply, with or without --quiet; with `--json` only answers of the model are printed.
fn print_reply(output: &Output, text: &str) {
    if !output.json {
        eprintln!("{}", text.trim_end());
    }
}

fn read_tokenizer(folder: &Path, vocabulary: usize) -> anyhow::Result<Tokenizer> {
    let read = Tokenizer::read(folder).map_err(|error| {
        Failure::hinted(error.to_string(), "download the tokenizer published with the weights")
    });
    let tokenizer = read?;
    tokenizer::check(&tokenizer, vocabulary)?;
    Ok(tokenizer)
}

fn read_template(folder: &Path) -> anyhow::Result<ChatTemplate> {
    render_templates::by_this_program(folder).map_err(|error| {
        let hint =
            "a base model has none; `firstlight run MODEL -p TEXT` continues a text without one";
        Failure::hinted(error.to_string(), hint)
    })
}

/// Context length that `--max-model-len` requests, if it is given; `most` is the model's limit.
pub(super) fn asked_context(asked: Option<usize>, most: usize) -> anyhow::Result<Option<usize>> {
    match asked {
        Some(asked) if asked > most => {
            let option = cli::as_typed("--max-model-len", &["--context", "--ctx-size", "-c"]);
            let what = format!("{option} {asked} is more than the model's longest context, {most}");
            Err(Failure::hinted(what, format!("ask for at most {most} tokens")))
        }
        asked => Ok(asked),
    }
}
