//! Styles of reasoning markers.

/// Markers around reasoning.
#[derive(Debug)]
pub(crate) struct Style {
    /// vLLM's names for its parsers of this style.
    pub(super) names: &'static [&'static str],
    /// Opening markers.
    pub(super) opens: &'static [&'static str],
    /// Closing markers.
    pub(super) closes: &'static [&'static str],
    /// Whether an answer starts with reasoning without an opening marker, unless the prompt ends with a closing one.
    pub(super) implicit: bool,
}

/// Every style. The style of a chat template is the first one with a marker that the template contains.
pub(super) const STYLES: &[Style] = &[
    Style {
        names: &[
            "qwen3",
            "deepseek_v3",
            "glm45",
            "glm47",
            "holo2",
            "hy_v3",
            "kimi_k2",
            "mimo",
            "nemotron_v3",
            "olmo3",
            "step3p5",
        ],
        opens: &["<think>"],
        closes: &["</think>"],
        implicit: false,
    },
    Style {
        names: &["deepseek_r1", "minimax_m2", "step3"],
        opens: &["<think>"],
        closes: &["</think>"],
        implicit: true,
    },
    Style { names: &["mistral"], opens: &["[THINK]"], closes: &["[/THINK]"], implicit: false },
    Style {
        names: &["granite"],
        opens: &["Here is my thought process:", "Here's my thought process:"],
        closes: &["Here is my response:", "Here's my response:"],
        implicit: false,
    },
    Style {
        names: &["seed_oss"],
        opens: &["<seed:think>"],
        closes: &["</seed:think>"],
        implicit: false,
    },
    Style { names: &[], opens: &["◁think▷"], closes: &["◁/think▷"], implicit: false },
];

impl Style {
    /// Whether a prompt ends inside reasoning, which the answer continues.
    pub(super) fn is_open(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        let ends = |markers: &[&str]| markers.iter().any(|marker| prompt.ends_with(marker));
        ends(self.opens) || (self.implicit && !ends(self.closes))
    }
}
