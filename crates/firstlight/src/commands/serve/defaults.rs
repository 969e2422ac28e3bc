//! Default sampling settings of requests, from the model's generation_config.json.

use api::SamplingDefaults;
use std::path::Path;

/// Reads the file; OpenAI's defaults for missing values or a missing file.
pub(super) fn read(folder: &Path) -> anyhow::Result<SamplingDefaults> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(SamplingDefaults::default());
    }
    let config = models::read_json(&path)?;
    let own = SamplingDefaults::default();
    let number = |name: &str, or: f64| config[name].as_f64().unwrap_or(or);
    let top_k = config["top_k"].as_u64().and_then(|count| usize::try_from(count).ok());
    Ok(SamplingDefaults {
        temperature: number("temperature", own.temperature),
        top_p: number("top_p", own.top_p),
        top_k: top_k.filter(|count| *count > 0),
        min_p: number("min_p", own.min_p),
        repetition_penalty: number("repetition_penalty", own.repetition_penalty),
    })
}
