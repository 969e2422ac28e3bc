use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "model-memory",
    title: "a model that needs more memory than is free",
    about: "\
A model needs memory for its weights, for the KV cache of each sequence (keys and values of every token in its attention
layers, or their compressed form), for the state of its recurrent layers, which does not grow with the context, and for
workspace. GB and GiB differ by 7 %: 98.25 GB of weights on a card with 101.47 GB = 94.50 GiB leave 3.2 GB.

It shows as an out-of-memory error while weights are loaded, or later, at the first long prompt.

Detected by counting bytes from config.json and the headers of the weight files, and comparing them with the free memory
of the GPU that has the most; the workspace is an estimate. The command is
`firstlight doctor --model DIR --context TOKENS --sequences N`.

Free memory of other processes (`firstlight ps`), shorten the context, quantize the weights, or use more GPUs.",
    links: &[
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html",
    ],
    texts: &[
        Text::new("No available memory for the cache blocks", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
        Text::new("is larger than the maximum number of tokens that can be stored in KV cache", "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (65536)."),
    ],
    remedy: |_| vec!["firstlight ps".into(), "# then count it: firstlight doctor --model DIR --context TOKENS".into()],
    ..Rule::BLANK
};
