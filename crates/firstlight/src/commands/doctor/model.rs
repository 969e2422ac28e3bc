//! A model's folder: its config.json and the headers of its safetensors files, which give parameters and bytes exactly.
//! Or a GGUF file, whose header has both.

use crate::cli::{ModelArguments, WeightFormat, as_typed};
use crate::failure::Failure;
use architectures::{Config, ConfigError};
use diagnose::{ModelOptions, Weights};
use facts::CompactSort;
use facts::DoctorReport;
use models::{Checkpoint, ModelError};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a config.
const LONGEST: u64 = 100 << 20;

/// The content of a model's files.
pub(in crate::commands) struct Model {
    config: String,
    path: PathBuf,
    /// None if only the config is used.
    weights: Option<Result<Weights, ModelError>>,
}

/// Default number of tokens per sequence.
pub(in crate::commands) const DEFAULT_CONTEXT: u64 = 4096;

impl Model {
    /// Its config.
    pub(in crate::commands) fn config(&self) -> Result<Config, ConfigError> {
        let config = Config::parse(&self.path.display().to_string(), &self.config)?;
        // A GGUF file omits keys without a value.
        Ok(if models::is_gguf(&self.path) { config.without_class_defaults() } else { config })
    }

    /// The model that `quantize` would write.
    pub(in crate::commands) fn rounded(self, to: WeightFormat) -> anyhow::Result<Self> {
        let config = to.of(self.config()?)?.to_text();
        Ok(Self { config, weights: None, ..self })
    }

    /// Refuses incomplete weights, with the file, the expected bytes and the actual bytes.
    pub(in crate::commands) fn whole(&self, report: &DoctorReport) -> anyhow::Result<()> {
        let Some(Err(error)) = &self.weights else { return Ok(()) };
        let by_config = report.model.as_ref().and_then(|model| model.memory.weights_bytes.as_ref());
        let wanted = match (error, by_config) {
            (ModelError::Incomplete { wanted: None, there, .. }, Some(bytes)) => {
                let bytes = bytes.value;
                format!(": the config implies {bytes} bytes of weights, the files have {there}")
            }
            _ => String::new(),
        };
        if !matches!(error, ModelError::Incomplete { .. })
            && let Some(hint) = error.hint()
        {
            return Err(Failure::hinted(error.to_string(), hint));
        }
        let what = format!("{error}{wanted}");
        let config = self.path.display();
        let hint =
            format!("download the model again; `firstlight fit {config}` uses only the config");
        Err(Failure::hinted(what, hint))
    }
}

/// Reads a folder with config.json, that file itself, or a GGUF file; or returns the config of a shape by its name.
pub(in crate::commands) fn read(named: &Path) -> anyhow::Result<Model> {
    let shown = named.display();
    if !named.exists() {
        if let Ok(shape) = models::shape(&shown.to_string()) {
            let config = shape.to_text();
            return Ok(Model { config, path: named.to_path_buf(), weights: None });
        }
        let hint = "name a folder with config.json, or the file, or a shape that `firstlight model synth` lists";
        return Err(Failure::hinted(format!("the model {shown} does not exist"), hint));
    }
    if models::is_gguf(named) {
        let config = models::read_config(named)?.to_text();
        return Ok(Model { config, path: named.to_path_buf(), weights: Some(weights(named)) });
    }
    let path = if named.is_dir() { named.join("config.json") } else { named.to_path_buf() };
    let config = text(&path).map_err(|reason| {
        let hint = "a model's folder has a config.json, as transformers writes it";
        Failure::hinted(format!("the model {shown} has no readable config: {reason}"), hint)
    })?;
    // A config that cannot be read is reported later.
    let config = models::parse_config(&path, &config).map_or(config, |read| read.to_text());
    // The parent of `config.json` is an empty path.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let weights = Some(weights(folder.unwrap_or(Path::new("."))));
    Ok(Model { config, path, weights })
}

/// Adds the model's requirements to the report.
pub(in crate::commands) fn judge(
    model: &Model,
    arguments: &ModelArguments,
    report: &mut DoctorReport,
) -> anyhow::Result<()> {
    let options = ModelOptions {
        source: model.path.display().to_string(),
        context_tokens: arguments.context.unwrap_or(DEFAULT_CONTEXT),
        sequences: arguments.sequences,
        weights: model.weights.as_ref().and_then(|weights| weights.as_ref().ok()).cloned(),
    };
    let (wanted, findings) =
        diagnose::model(&model.config, &options, &report.machine, &report.envs, &report.findings)?;
    // Fewer tokens than requested would not answer the question.
    let limit = wanted.memory.context_tokens;
    if let Some(asked) = arguments.context.filter(|asked| *asked > limit) {
        let shown = model.path.display();
        let option = as_typed("--max-model-len", &["--context", "--ctx-size", "-c"]);
        let what = format!("{option} {asked}: the model's longest context is {limit} ({shown})");
        return Err(Failure::hinted(what, format!("ask for at most {option} {limit}")));
    }
    report.findings.extend(findings);
    report.findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    report.model = Some(wanted);
    Ok(())
}

/// The kinds of layers of a model, each once.
pub(in crate::commands) fn layer_kinds(model: &Model) -> anyhow::Result<Vec<&'static str>> {
    let path = model.path.display().to_string();
    Ok(diagnose::layer_kinds(&model.config, &path)?)
}

fn text(path: &Path) -> std::io::Result<String> {
    // Opening a named pipe would block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Values and bytes of the weights of a folder or a GGUF file, from its headers.
fn weights(folder: &Path) -> Result<Weights, ModelError> {
    let checkpoint = Checkpoint::open(folder)?;
    let shown = folder.display();
    let source = match (models::is_gguf(folder), checkpoint.files()) {
        (true, _) => format!("the header of {shown}"),
        (false, 1) => format!("the headers of 1 safetensors file in {shown}"),
        (false, files) => format!("the headers of {files} safetensors files in {shown}"),
    };
    Ok(Weights { parameters: checkpoint.parameters(), bytes: checkpoint.bytes(), source })
}
