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
    pub(super) trim: Trim,
}

/// White space at an end of the reasoning that is omitted. White space of the content is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trim {
    Neither,
    End,
    Both,
}

/// Every style. The style of a chat template is the first one with a marker that the template contains: the prompt or the
/// answer starts the reasoning.
pub(super) const STYLES: &[Style] = &[
    Style {
        names: &["deepseek_v3", "hy_v3"],
        opens: &["<think>"],
        closes: &["</think>"],
        implicit: false,
        trim: Trim::Neither,
    },
    Style {
        names: &["deepseek_r1", "holo2", "mimo", "olmo3", "qwen3", "step3"],
        opens: &["<think>"],
        closes: &["</think>"],
        implicit: true,
        trim: Trim::Neither,
    },
    Style {
        names: &["glm45", "glm47", "kimi_k2", "minimax_m2", "nemotron_v3", "step3p5"],
        opens: &["<think>"],
        closes: &["</think>"],
        implicit: true,
        trim: Trim::End,
    },
    Style {
        names: &["mistral"],
        opens: &["[THINK]"],
        closes: &["[/THINK]"],
        implicit: false,
        trim: Trim::End,
    },
    Style {
        names: &["granite"],
        opens: &["Here is my thought process:", "Here's my thought process:"],
        closes: &["Here is my response:", "Here's my response:"],
        implicit: false,
        trim: Trim::Neither,
    },
    Style {
        names: &["seed_oss"],
        opens: &["<seed:think>"],
        closes: &["</seed:think>"],
        implicit: true,
        trim: Trim::Neither,
    },
    Style {
        names: &[],
        opens: &["◁think▷"],
        closes: &["◁/think▷"],
        implicit: false,
        trim: Trim::Neither,
    },
];

impl Style {
    /// Whether a prompt ends inside reasoning, which the answer continues.
    pub(super) fn is_open(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        let ends = |markers: &[&str]| markers.iter().any(|marker| prompt.ends_with(marker));
        ends(self.opens) || (self.implicit && !ends(self.closes))
    }
}
