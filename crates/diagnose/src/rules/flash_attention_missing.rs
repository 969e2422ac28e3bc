use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "flash-attention-missing",
    title: "a model asks for FlashAttention, and flash-attn is not installed",
    about: "\
transformers and models with custom code require flash-attn by name. It is a separate package of compiled kernels: PyPI
has only its source, and a wheel fits one torch, one CUDA, one Python and one C++ ABI.

It shows as one of
  ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package
  flash_attn seems to be not installed.
  ModuleNotFoundError: No module named 'flash_attn'

torch's own scaled dot product attention (sdpa) replaces it in most models, at nearly the same speed and without another
package. If a model requires flash-attn, install the wheel whose name has this torch and CUDA, from the project's
releases page.",
    links: &["https://github.com/Dao-AILab/flash-attention"],
    texts: &[
        Text::new("FlashAttention* has been toggled on, but it cannot be used", "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed. Please refer to the documentation"),
        Text::new("requires the following packages that were not found in your environment: flash_attn", "ImportError: This modeling file requires the following packages that were not found in your environment: flash_attn. Run `pip install flash_attn`"),
        Text::new("No module named 'flash_attn'", "ModuleNotFoundError: No module named 'flash_attn'"),
    ],
    remedy: |_| {
        vec![
            "# in the call of from_pretrained, instead of flash_attention_2:".into(),
            "# attn_implementation=\"sdpa\"".into(),
            "python -c 'import sys, torch; print(sys.version_info[:2], torch.__version__, torch._C._GLIBCXX_USE_CXX11_ABI)'".into(),
            "# the wheel with these in its name: github.com/Dao-AILab/flash-attention/releases".into(),
        ]
    },
    ..Rule::BLANK
};
