use super::fields::{optional, write};
use facts::ModelSpeedReport;

/// Every timed test of a model with its samples, one per line, for other programs; firstlight reads `models.json` instead.
pub fn model_speed_csv(report: &ModelSpeedReport) -> String {
    const COLUMNS: &[&str] = &[
        "model",
        "family",
        "layers",
        "backend",
        "device",
        "dtype",
        "test",
        "peer",
        "sequences",
        "mean_tokens_per_second",
        "deviation_tokens_per_second",
        "samples_tokens_per_second",
        "first_token_cold_ms",
        "first_token_warm_ms",
        "bytes_per_step",
        "read_gbps",
        "limit_tokens_per_second",
        "pct_of_limit",
    ];
    let rows = report.speeds.iter().map(|speed| {
        let samples: Vec<String> =
            speed.samples_tokens_per_second.iter().map(f64::to_string).collect();
        let (first, limit) = (speed.first_token, speed.limit);
        vec![
            report.model.clone(),
            report.family.clone(),
            report.layers.to_string(),
            report.backend.to_string(),
            report.device.clone(),
            report.dtype.clone(),
            speed.test.clone(),
            speed.peer.clone().unwrap_or_default(),
            speed.sequences.to_string(),
            speed.mean_tokens_per_second.to_string(),
            optional(speed.deviation_tokens_per_second),
            samples.join(" "),
            optional(first.map(|first| first.cold_ms)),
            optional(first.map(|first| first.warm_ms)),
            limit.map(|limit| limit.bytes_per_step.to_string()).unwrap_or_default(),
            optional(limit.map(|limit| limit.read_gbps)),
            optional(limit.map(|limit| limit.tokens_per_second)),
            optional(limit.map(|limit| limit.percent)),
        ]
    });
    write(COLUMNS, rows)
}
