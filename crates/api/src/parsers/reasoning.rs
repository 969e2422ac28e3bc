//! Styles of reasoning markers.

/// Markers around reasoning.
#[derive(Debug)]
pub(crate) struct Style {
    /// vLLM's names for its parsers of this style.
    pub(super) names: &'static [&'static str],
    pub(super) opens: &'static [&'static str],
    pub(super) closes: &'static [&'static str],
    /// Whether an answer starts with reasoning without an opening marker, unless the prompt has closed it.
    pub(super) open: bool,
}

/// Every style. A template has the first one whose markers it contains.
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
        open: false,
    },
    Style {
        names: &["deepseek_r1", "minimax_m2", "step3"],
        opens: &["<think>"],
        closes: &["</think>"],
        open: true,
    },
    Style { names: &["mistral"], opens: &["[THINK]"], closes: &["[/THINK]"], open: false },
    Style {
        names: &["granite"],
        opens: &["Here is my thought process:", "Here's my thought process:"],
        closes: &["Here is my response:", "Here's my response:"],
        open: false,
    },
    Style {
        names: &["seed_oss"],
        opens: &["<seed:think>"],
        closes: &["</seed:think>"],
        open: false,
    },
    Style { names: &[], opens: &["◁think▷"], closes: &["◁/think▷"], open: false },
];

impl Style {
    /// Whether a prompt ends inside reasoning, which the answer continues.
    pub(super) fn is_open(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        let ends = |marks: &[&str]| marks.iter().any(|mark| prompt.ends_with(mark));
        ends(self.opens) || (self.open && !ends(self.closes))
    }
}
