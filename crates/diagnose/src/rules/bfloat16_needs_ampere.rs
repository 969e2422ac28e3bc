use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "bfloat16-needs-ampere",
    title: "a bfloat16 model on a GPU without bfloat16 tensor cores",
    about: "\
The tensor cores of GPUs before Ampere (compute capability below 8.0: T4, V100, RTX 20, GTX) do not support bfloat16,
and vLLM refuses to run a bfloat16 model on them. Most recent models name bfloat16 in their config.json, which the
dtype `auto` follows.

It shows as
  ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has
  compute capability 7.5.

Run the model in float16 instead. Values above 65,504 overflow in float16: if the output is noise, use float32, which
needs twice the memory, or a GPU of Ampere or later.",
    links: &["https://github.com/vllm-project/vllm/issues/1157"],
    texts: &[
        Text::new("Bfloat16 is only supported on GPUs with compute capability of at least", "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half."),
    ],
    remedy: |_| vec!["vllm serve MODEL --dtype half".into()],
    ..Rule::BLANK
};
