//! Kernels of installed Python packages: each is a row of [`PEERS`] and an adapter in `python/peers/` that maps an op's
//! contract to the package's call.
//!
//! A peer passes like a native kernel, by its outputs and by evidence: a profiler must have seen its own kernels. If
//! only other kernels computed the result, it is a fallback, even if it is correct.

use crate::python::MODEL;
use facts::Status;

/// The adapters, by file.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("torch_sdpa", include_str!("python/peers/torch_sdpa.py")),
    ("flash_attn", include_str!("python/peers/flash_attn.py")),
    ("ffpa", include_str!("python/peers/ffpa.py")),
    ("fla", include_str!("python/peers/fla.py")),
    ("fla_modules", include_str!("python/peers/fla_modules.py")),
    ("mamba_ssm", include_str!("python/peers/mamba_ssm.py")),
    ("causal_conv1d", include_str!("python/peers/causal_conv1d.py")),
    ("transformers", include_str!("python/peers/transformers.py")),
    ("firstlight", include_str!("python/peers/firstlight.py")),
    ("triton_hello", include_str!("python/peers/triton_hello.py")),
];

/// A kernel of a Python package.
#[derive(Debug, Clone, Copy)]
pub struct ListedPeer {
    /// `torch.sdpa.flash`: the package name is first.
    pub name: &'static str,
    /// The op whose contract it is compared with, or [`MODEL`] for one that runs whole models.
    pub op: &'static str,
    /// The top-level module of its package.
    pub module: &'static str,
    /// The adapter's file.
    pub adapter: &'static str,
    /// The outputs it computes; the op's other outputs are not required.
    pub gives: &'static [&'static str],
    /// Substrings of the names of its kernels, of which one must have run.
    pub kernels: &'static [&'static str],
    /// Substrings of names that look like its own but belong to another package.
    pub not: &'static [&'static str],
    /// For a model: its own kernels for single tokens, of which one must also have run in generation.
    pub decodes: &'static [&'static str],
    /// Its operators on the CPU; empty for a peer that needs a GPU.
    pub cpu: &'static [&'static str],
}

const fn on_gpu(
    (name, op): (&'static str, &'static str),
    adapter: &'static str,
    gives: &'static [&'static str],
    kernels: &'static [&'static str],
) -> ListedPeer {
    let module = module_of(adapter);
    ListedPeer { name, op, module, adapter, gives, kernels, not: &[], decodes: &[], cpu: &[] }
}

/// The top-level module that an adapter imports: the file's name, with a few exceptions.
const fn module_of(adapter: &'static str) -> &'static str {
    match adapter.as_bytes() {
        b"torch_sdpa" => "torch",
        b"ffpa" => "ffpa_attn",
        b"fla_modules" => "fla",
        b"triton_hello" => "triton",
        _ => adapter,
    }
}

/// firstlight's wheel: the names are the entry points of the kernels' sources.
const fn own(
    name_and_op: (&'static str, &'static str),
    gives: &'static [&'static str],
    kernels: &'static [&'static str],
) -> ListedPeer {
    on_gpu(name_and_op, "firstlight", gives, kernels)
}

const O: &[&str] = &["o"];
const LOGITS: &[&str] = &["logits"];
const O_AND_STATE: &[&str] = &["o", "final_state"];

/// Every peer. Kernel names are those that torch 2.11, flash-linear-attention 0.6, ffpa-attn 0.2, mamba_ssm 2.3 and
/// causal-conv1d 1.6 launch.
pub const PEERS: &[ListedPeer] = &[
    ListedPeer {
        not: &["fmha_cutlass", "flash", "cudnn"],
        cpu: &["aten::_scaled_dot_product_attention_math"],
        // The softmax between its two products is the only kernel that it always launches.
        ..on_gpu(("torch.sdpa.math", "attention"), "torch_sdpa", O, &["softmax", "SoftMax"])
    },
    on_gpu(("torch.sdpa.efficient", "attention"), "torch_sdpa", O, &["fmha_cutlass"]),
    ListedPeer {
        cpu: &["aten::_scaled_dot_product_flash_attention_for_cpu"],
        ..on_gpu(("torch.sdpa.flash", "attention"), "torch_sdpa", O, &["pytorch_flash"])
    },
    on_gpu(("torch.sdpa.cudnn", "attention"), "torch_sdpa", O, &["cudnn"]),
    ListedPeer {
        not: &["pytorch_flash"],
        ..on_gpu(("flash_attn.dense", "attention"), "flash_attn", O, &["flash_fwd", "FlashAttnFwd"])
    },
    ListedPeer {
        not: &["pytorch_flash"],
        ..on_gpu(
            ("flash_attn.varlen", "attention"),
            "flash_attn",
            O,
            &["flash_fwd", "FlashAttnFwd"],
        )
    },
    on_gpu(("ffpa.triton", "attention"), "ffpa", O, &["_ffpa_"]),
    on_gpu(("ffpa.cutedsl", "attention"), "ffpa", O, &["FFPA", "ffpa"]),
    on_gpu(("fla.chunk_kda", "kda"), "fla", O_AND_STATE, &["chunk_kda_fwd_kernel", "kda_kernel"]),
    on_gpu(("fla.fused_recurrent_kda", "kda"), "fla", O_AND_STATE, &["fused_recurrent_kda"]),
    on_gpu(("fla.parallel_nsa", "nsa"), "fla", &["o", "indices"], &["parallel_nsa"]),
    on_gpu(
        ("fla.causal_conv1d", "conv1d"),
        "fla_modules",
        O_AND_STATE,
        &["causal_conv1d_fwd_kernel"],
    ),
    on_gpu(("fla.rms_norm_gated", "rmsnorm"), "fla_modules", O, &["layer_norm_gated_fwd_kernel"]),
    on_gpu(("mamba_ssm.chunk_scan", "ssd"), "mamba_ssm", O_AND_STATE, &["_chunk_scan_fwd_kernel"]),
    on_gpu(
        ("mamba_ssm.state_update", "ssd"),
        "mamba_ssm",
        O_AND_STATE,
        &["_selective_scan_update_kernel"],
    ),
    on_gpu(
        ("mamba_ssm.selective_scan", "selective_scan"),
        "mamba_ssm",
        O_AND_STATE,
        &["selective_scan_fwd_kernel"],
    ),
    on_gpu(
        ("mamba_ssm.selective_update", "selective_scan"),
        "mamba_ssm",
        O_AND_STATE,
        &["_selective_scan_update_kernel"],
    ),
    on_gpu(("causal_conv1d.fn", "conv1d"), "causal_conv1d", O_AND_STATE, &["causal_conv1d_"]),
    on_gpu(
        ("causal_conv1d.update", "conv1d"),
        "causal_conv1d",
        O_AND_STATE,
        &["causal_conv1d_update"],
    ),
    ListedPeer {
        decodes: &["_selective_scan_update_kernel"],
        cpu: &["aten::"],
        ..on_gpu(
            ("transformers.granitemoehybrid", MODEL),
            "transformers",
            LOGITS,
            // Its fast path; without it the layers are torch operators, several times slower.
            &["_chunk_scan_fwd_kernel"],
        )
    },
    ListedPeer {
        decodes: &["fused_recurrent"],
        cpu: &["aten::"],
        ..on_gpu(
            ("transformers.kimi_linear", MODEL),
            "transformers",
            LOGITS,
            &["chunk_kda", "kda_kernel"],
        )
    },
    own(
        ("firstlight.attention", "attention"),
        &["o", "lse"],
        &["attention_hopper", "attention_mma", "attention_decode"],
    ),
    own(("firstlight.kda", "kda"), O_AND_STATE, &["kda_walk", "kda_recurrent"]),
    own(("firstlight.gated_delta", "gated_delta"), O_AND_STATE, &["kda_walk", "kda_recurrent"]),
    own(("firstlight.ssd", "ssd"), O_AND_STATE, &["ssd_chunk", "ssd_recurrent"]),
    own(
        ("firstlight.selective_scan", "selective_scan"),
        O_AND_STATE,
        &["selective_scan_tiles", "selective_scan_step"],
    ),
    ListedPeer {
        not: &["causal_conv1d"],
        ..own(("firstlight.conv1d", "conv1d"), O_AND_STATE, &["conv1d_channel_", "conv1d_update"])
    },
    own(
        ("firstlight.nsa", "nsa"),
        &["o", "indices"],
        &["nsa_blocks", "nsa_compressed", "nsa_finish", "nsa_step_"],
    ),
    own(("firstlight.rmsnorm", "rmsnorm"), O, &["rmsnorm_rows"]),
    own(("firstlight.linear", "linear"), O, &["linear_hopper", "linear_mma", "linear_stream"]),
    own(
        ("firstlight.moe", "moe"),
        &["o", "chosen", "weights"],
        &["moe_hopper", "moe_grouped", "moe_decode_"],
    ),
    on_gpu(("triton.hello", "conv1d"), "triton_hello", O, &["hello_conv1d"]),
];

/// A peer of a run: a listed one, or a user's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The op.
    pub op: String,
    /// Whether the user named it: then its absence is a failure.
    pub named: bool,
    /// The top-level module of its package; `None` for a user's function, which has to be tried.
    pub(crate) module: Option<&'static str>,
    pub(crate) adapter: Option<&'static str>,
    pub(crate) function: Option<String>,
    pub(crate) gives: Vec<String>,
    pub(crate) kernels: Vec<String>,
    pub(crate) not: Vec<String>,
    pub(crate) decodes: Vec<String>,
    pub(crate) cpu: Vec<String>,
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl From<&ListedPeer> for Peer {
    fn from(listed: &ListedPeer) -> Self {
        Self {
            name: listed.name.to_owned(),
            op: listed.op.to_owned(),
            named: false,
            module: Some(listed.module),
            adapter: Some(listed.adapter),
            function: None,
            gives: owned(listed.gives),
            kernels: owned(listed.kernels),
            not: owned(listed.not),
            decodes: owned(listed.decodes),
            cpu: owned(listed.cpu),
        }
    }
}

impl Peer {
    /// Every listed peer whose name starts with one of these; all of them for none.
    pub fn listed(named: &[String]) -> Vec<Self> {
        let wanted = |listed: &&ListedPeer| {
            named.is_empty() || named.iter().any(|name| listed.name.starts_with(name.as_str()))
        };
        let peers = PEERS.iter().filter(wanted).map(Self::from);
        peers.map(|peer| Self { named: !named.is_empty(), ..peer }).collect()
    }

    /// The status of a peer whose package, or an optional dependency of it, is not installed.
    pub(crate) fn status_if_not_installed(&self) -> Status {
        if self.named { Status::Fail } else { Status::NotApplicable }
    }

    /// Whether it runs whole models of this type; a user's function reports itself what it cannot run.
    pub fn runs_models(&self, model_type: &str) -> bool {
        let named = self.name.rsplit('.').next() == Some(model_type);
        self.op == MODEL && (named || self.function.is_some())
    }

    /// A user's function from `OP=MODULE:FUNCTION`, or `OP=MODULE:FUNCTION@KERNEL` with a substring of the name of a
    /// kernel that must have run. Without it any kernel counts.
    ///
    /// # Errors
    /// One sentence.
    pub fn function(text: &str) -> Result<Self, String> {
        let form = "expected OP=MODULE:FUNCTION or OP=MODULE:FUNCTION@KERNEL";
        let parts = text.split_once('=').and_then(|(op, function)| {
            let (function, kernel) = function.split_once('@').unwrap_or((function, ""));
            let (module, name) = function.split_once(':')?;
            (!module.is_empty() && !name.is_empty()).then_some((op, function, kernel))
        });
        let Some((op, function, kernel)) = parts else {
            return Err(format!("`{text}` names no function, {form}"));
        };
        if op != MODEL {
            ops::op(op).map_err(|error| error.to_string())?;
        }
        let kernels = Some(kernel.to_owned()).filter(|kernel| !kernel.is_empty());
        Ok(Self {
            name: function.to_owned(),
            op: op.to_owned(),
            named: true,
            module: None,
            adapter: None,
            function: Some(function.to_owned()),
            gives: Vec::new(),
            cpu: kernels.clone().into_iter().collect(),
            kernels: kernels.into_iter().collect(),
            not: Vec::new(),
            decodes: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_adapter_is_listed_and_defines_its_peers() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/python/peers");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| {
                Some(entry.unwrap().file_name().to_str()?.strip_suffix(".py")?.to_owned())
            })
            .collect();
        assert_eq!(files, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
        let mut names = BTreeSet::new();
        for peer in PEERS {
            assert!(names.insert(peer.name), "{} is listed twice", peer.name);
            assert!(FILES.iter().any(|(name, _)| *name == peer.adapter), "{}", peer.name);
            for output in peer.gives {
                let known = match peer.op {
                    MODEL => LOGITS.contains(output),
                    op => ops::op(op).unwrap().spec().outputs.iter().any(|o| o.name == *output),
                };
                assert!(known, "{}: {output}", peer.name);
            }
            assert!(
                !peer.gives.is_empty() && !peer.kernels.is_empty(),
                "{} has no evidence",
                peer.name
            );
        }
        for peer in PEERS {
            let text = FILES.iter().find(|(name, _)| *name == peer.adapter).unwrap().1;
            let imports = ["package(\"", "import ", "from "];
            let imports = imports.map(|before| text.contains(&format!("{before}{}", peer.module)));
            assert!(imports.contains(&true), "{}", peer.name);
        }
        for (name, text) in FILES {
            assert!(
                text.lines().count() < 120 && text.starts_with("\"\"\""),
                "{name} is small and says what it is"
            );
        }
    }

    #[test]
    fn kernels_of_the_firstlight_wheel_are_entry_points_of_its_sources() {
        fn sources(folder: &std::path::Path, text: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    sources(&path, text);
                } else if path.extension().is_some_and(|extension| extension == "cu") {
                    text.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        let mut text = String::new();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops-cuda/src");
        sources(std::path::Path::new(folder), &mut text);
        for peer in PEERS.iter().filter(|peer| peer.adapter == "firstlight") {
            for kernel in peer.kernels {
                assert!(
                    text.contains(&format!("void {kernel}"))
                        || text.contains(&format!(" {kernel}")),
                    "{kernel}"
                );
            }
        }
    }

    #[test]
    fn functions_are_read_from_the_command_line() {
        let check = |text: &str, expect: Result<(&str, &str, &[&str]), &str>| match (
            Peer::function(text),
            expect,
        ) {
            (Ok(peer), Ok((op, function, kernels))) => {
                assert_eq!((peer.op.as_str(), peer.function.as_deref()), (op, Some(function)));
                assert_eq!(peer.kernels, owned(kernels));
            }
            (got, want) => assert_eq!(got.map(|_| ("", "", &[][..])), want.map_err(str::to_owned)),
        };
        check("attention=mine:f", Ok(("attention", "mine:f", &[])));
        check("model=mine:f", Ok(("model", "mine:f", &[])));
        check("kda=a.b:c.d@my_kernel", Ok(("kda", "a.b:c.d", &["my_kernel"])));
        check(
            "mine:f",
            Err(
                "`mine:f` names no function, expected OP=MODULE:FUNCTION or OP=MODULE:FUNCTION@KERNEL",
            ),
        );
        check(
            "attention=:f",
            Err(
                "`attention=:f` names no function, expected OP=MODULE:FUNCTION or OP=MODULE:FUNCTION@KERNEL",
            ),
        );
        check("softmax=a:f", Err("there is no op `softmax`"));
    }
}
