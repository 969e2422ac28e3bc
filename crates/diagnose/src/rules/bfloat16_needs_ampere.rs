use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "bfloat16-needs-ampere",
    title: "a model in bfloat16 on a GPU that does not compute in it",
    about: "\
GPUs before Ampere (compute capability below 8.0: T4, V100, RTX 20, GTX) have no bfloat16 in their tensor cores, and
vLLM refuses to run a model in it there. Most models of the last years have bfloat16 in their config.json, which is
what `auto` takes.

It shows as
  ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has
  compute capability 7.5.

Run it in float16 in its place. Numbers beyond 65,504 overflow there: where the answers are noise, take float32, which
needs twice the memory, or a GPU of Ampere or later.",
    links: &["https://github.com/vllm-project/vllm/issues/1157"],
    texts: &[
        Text::new("Bfloat16 is only supported on GPUs with compute capability of at least", "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half."),
    ],
    remedy: |_| vec!["vllm serve MODEL --dtype half".into()],
    ..Rule::BLANK
};
