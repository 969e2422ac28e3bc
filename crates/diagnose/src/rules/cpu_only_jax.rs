use super::{Role, Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "cpu-only-jax",
    title: "JAX without its CUDA plugin",
    about: "\
jax and jaxlib from PyPI run on the CPU. GPU support is a separate plugin (jax-cuda12-plugin or jax-cuda13-plugin and
their pjrt packages), which the extras cuda12 and cuda13 install in the same version as jaxlib. If it is missing, of
another version, or cannot find its CUDA libraries, JAX falls back to the CPU with one warning.

It shows as
  An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.

Install jax with the extra of a CUDA major version that the driver supports. If the log has an error of the plugin
above this warning, that error is the cause.",
    links: &[
        "https://docs.jax.dev/en/latest/installation.html",
        "https://github.com/jax-ml/jax/issues/29068",
    ],
    texts: &[
        Text::new("a CUDA-enabled jaxlib is not installed", "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu."),
        Text::new("No GPU/TPU found, falling back to CPU", "WARNING - No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)"),
        // https://github.com/ma-gilles/recovar/issues/64
        Text::new("JAX plugin jax_cuda* version * is installed, but it is not compatible with the installed jaxlib version", "RuntimeWarning: JAX plugin jax_cuda12_plugin version 0.9.2 is installed, but it is not compatible with the installed jaxlib version 0.9.0.1, so it will not be used."),
        Text::new("No FFI handler registered for cu*", "No FFI handler registered for cusolver_potrf_ffi"),
        // https://github.com/jax-ml/jax/issues/22416
        Text::new("Mismatched PJRT plugin PJRT API version", "RuntimeError: Unable to initialize backend 'cuda': INVALID_ARGUMENT: Mismatched PJRT plugin PJRT API version (0.54) and framework PJRT API version 0.51)."),
        // https://github.com/DifferentiableUniverseInitiative/jaxDecomp/issues/116
        Text::new("Jax plugin configuration error: Exception when calling jax_plugins.xla_cuda*", "ERROR:2026-02-16 14:25:32,221:jax._src.xla_bridge:491: Jax plugin configuration error: Exception when calling jax_plugins.xla_cuda12.initialize()"),
        // https://github.com/magenta/mt3/issues/145
        Text::new("CUDA backend failed to initialize: Unable to load CUDA.", "WARNING:jax._src.xla_bridge:CUDA backend failed to initialize: Unable to load CUDA. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)"),
    ],
    role: Role::Notice,
    remedy: |seen| {
        let limit = seen.machine().driver.as_ref().and_then(|driver| driver.cuda_limit.as_ref());
        let extra = if limit.is_some_and(|limit| limit.value.0 >= 13) { "cuda13" } else { "cuda12" };
        vec![seen.installer().install(&[format!("jax[{extra}]")], None).into()]
    },
    ..Rule::BLANK
};
