//! Error codes of CUDA, cuDNN, cuBLAS and NCCL, by number, by name and by the message that programs print.

use super::{Entity, Form, keyed};
use crate::host;
use crate::rules::PastedError;
use knowledge::gpu_codes;

pub(super) fn forms() -> Vec<Form> {
    let mut all = Vec::new();
    for row in gpu_codes::cuda() {
        let mut add = |pattern: String| all.push(keyed(pattern, &row.name, cuda));
        add(row.name.clone());
        if !row.driver.is_empty() {
            add(row.driver.clone());
            // Numba and ollama print the driver's code alone.
            for (before, after) in [
                ("CudaAPIError: [", "]"),
                ("Error at driver init: [", "]"),
                ("driver library init failure: ", ""),
                ("nvcuda init failure: ", ""),
                ("cuInit err: ", ""),
            ] {
                add(format!("{before}{}{after}", row.code));
            }
        }
        // Other programs also print short messages such as `invalid argument`.
        for prefix in [
            "CUDA error: ",
            "Cuda failure '",
            "Cuda failure ",
            "CUDA runtime error: ",
            "CUDA driver error: ",
        ] {
            add(format!("{prefix}{}", row.words));
        }
        // TensorRT-LLM and xformers print the call or the file before the message.
        add(format!("CUDA runtime error in *: {}", row.words));
        add(format!("CUDA error (*): {}", row.words));
        if row.distinct {
            add(row.words.clone());
        }
        for prefix in
            ["CUDA error ", "CUDA error: ", "CUDA error code=", "Cuda error ", "cudaError_t "]
        {
            add(format!("{prefix}{}", row.code));
        }
        for prefix in [
            "CUDA initialization fails with ",
            "CUDA initialization failed with error ",
            "cuInit failed with ",
            "cuInit returned ",
        ] {
            add(format!("{prefix}{}", row.code));
        }
        for prefix in ["CUDA failure ", "Cuda failure "] {
            add(format!("{prefix}{} '{}", row.code, row.words));
        }
        add(format!("CUDA failure {}:", row.code));
    }
    for row in gpu_codes::statuses() {
        let pattern = match (row.library.as_str(), row.name.starts_with("nccl")) {
            ("NCCL", false) => format!("NCCL*{}", row.name),
            _ => row.name.clone(),
        };
        all.push(keyed(pattern, &row.name, status));
    }
    all
}

/// An entity with the advice of a class of codes.
fn advised(seen: &PastedError, entity: Entity, class: &str) -> Option<Entity> {
    let advice = gpu_codes::advice(class)?;
    let python = seen.installer().python();
    let lines = advice.fix.iter().map(|line| line.replace("{python}", &python));
    let causes = super::message::causes(seen, &advice.causes);
    Some(entity.meaning(advice.meaning.as_str()).causes(causes).fix(lines).rank(3))
}

fn cuda(seen: &PastedError, key: &'static str) -> Option<Entity> {
    let row = gpu_codes::cuda().iter().find(|row| row.name == key)?;
    let name = format!("{} ({}): {}", row.name, row.code, row.words);
    let mut entity = Entity::new("cuda-error", name);
    let class = match row.advice.as_str() {
        "not-supported" if seen.text.contains("NCCL") => "not-supported-nccl",
        class => class,
    };
    if class == "hardware" {
        entity = entity.fix(host::driver_location_remark(seen.machine()));
    }
    advised(seen, entity, class)
}

fn status(seen: &PastedError, key: &'static str) -> Option<Entity> {
    let row = gpu_codes::statuses().iter().find(|row| row.name == key)?;
    let entity = Entity::new("library-status", format!("{}: {}", row.library, row.name));
    let mut entity = advised(seen, entity, &row.advice)?;
    let part = format!("nvidia-{}", row.library.to_ascii_lowercase());
    for env in seen.context.envs {
        for dist in env.dists.iter().filter(|dist| dist.name.replace('_', "-").starts_with(&part)) {
            entity = entity
                .evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
                .package(dist.name.clone());
        }
    }
    Some(entity)
}
