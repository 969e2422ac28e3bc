//! The versions that are compared first: interpreter, torch, its CUDA, triton and flash_attn of one environment.

use facts::PyEnv;

/// `python`, `torch`, `cuda`, `triton` and `flash_attn` of an environment, each with its source.
pub(crate) fn five_lines(env: &PyEnv) -> [(&'static str, String, String); 5] {
    let python = match &env.interpreter.version {
        Some(version) => (version.value.clone(), version.source.clone()),
        None => ("version not found".to_owned(), env.root.clone()),
    };
    let (torch, cuda) = match (&env.torch, env.dist("torch")) {
        (Some(torch), _) => {
            let cuda = match (&torch.cuda, &torch.hip) {
                (Some(cuda), _) => cuda.clone(),
                (None, Some(hip)) => format!("none: torch is built for HIP {hip}"),
                (None, None) => "none: torch is built for the CPU only".to_owned(),
            };
            ((torch.version.clone(), torch.source.clone()), (cuda, torch.source.clone()))
        }
        // METADATA has no CUDA version, and a local version label is not proof of it.
        (None, Some(dist)) => (
            (dist.version.clone(), dist.path.clone()),
            ("not known: no torch/version.py".to_owned(), dist.path.clone()),
        ),
        (None, None) => {
            (absent(env), ("none: torch is not installed".to_owned(), env.root.clone()))
        }
    };
    let triton = installed(env, &["triton", "pytorch-triton", "triton-windows"]);
    let flash_attn = installed(env, &["flash-attn"]);
    let line = |label, (value, source): (String, String)| (label, value, source);
    [
        line("python", python),
        line("torch", torch),
        line("cuda", cuda),
        line("triton", triton),
        line("flash_attn", flash_attn),
    ]
}

fn installed(env: &PyEnv, names: &[&str]) -> (String, String) {
    names
        .iter()
        .find_map(|name| env.dist(name))
        .map_or_else(|| absent(env), |dist| (dist.version.clone(), dist.path.clone()))
}

/// No dist-info folder has that name.
fn absent(env: &PyEnv) -> (String, String) {
    let read = env.site_packages.first().unwrap_or(&env.root);
    ("not installed".to_owned(), read.clone())
}
