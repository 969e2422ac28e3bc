//! Experts in every layout that checkpoints have: one by one or stacked, as matrices or their transposes, under the names of any family.

#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

use facts::BackendKind;
use models::{
    Batch, Capacity, Model, ModelError, Storage, SynthOptions, Wanted, open, shape, synth,
};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use std::collections::BTreeMap;
use std::path::Path;

/// A reduced model of each family that has experts. gpt-oss is missing: its experts have biases, and every checkpoint stacks them.
const FAMILIES: &[&str] = &[
    "granite-moe-mini",
    "kimi-linear-mini",
    "qwen3-moe-mini",
    "qwen3-next-mini",
    "qwen3.5-moe-mini",
    "nemotron-mini",
    "lfm2-moe-mini",
    "jamba-mini",
];

/// A tensor of any type.
#[derive(Clone)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn width(&self) -> usize {
        self.bytes.len() / self.shape.iter().product::<usize>()
    }

    /// Rows `first..end` of the matrix that all but the last dimension make.
    fn rows(&self, first: usize, end: usize) -> Self {
        let columns = *self.shape.last().unwrap();
        let row = columns * self.width();
        let bytes = self.bytes[first * row..end * row].to_vec();
        Self { dtype: self.dtype, shape: vec![end - first, columns], bytes }
    }

    fn transposed(&self) -> Self {
        let ([rows, columns], width) = ([self.shape[0], self.shape[1]], self.width());
        let place = |at: usize| (at % rows * columns + at / rows) * width;
        let bytes = (0..rows * columns).flat_map(|at| self.bytes[place(at)..][..width].to_vec());
        Self { dtype: self.dtype, shape: vec![columns, rows], bytes: bytes.collect() }
    }

    /// One below the other.
    fn below(parts: &[&Self]) -> Self {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let bytes = parts.iter().flat_map(|part| part.bytes.clone()).collect();
        Self { dtype: parts[0].dtype, shape: vec![rows, parts[0].shape[1]], bytes }
    }

    /// `[matrices, rows, columns]`.
    fn stacked(parts: &[Self]) -> Self {
        let whole = Self::below(&parts.iter().collect::<Vec<_>>());
        let shape = [&[parts.len()][..], &parts[0].shape].concat();
        Self { shape, ..whole }
    }
}

/// An expert's gate, where it has one, its up and its down.
type Expert = (Option<Tensor>, Tensor, Tensor);

#[derive(Debug, Clone, Copy)]
enum Layout {
    /// The names of gate, up and down of each.
    Each([&'static str; 3]),
    /// The names of gates with ups, of ups alone, and of downs, of all.
    Stacked { names: [&'static str; 3], transposed: bool },
    /// Gates, ups and downs, each stacked.
    Apart { transposed: bool },
}

const PLAIN: [&str; 3] = ["experts.gate_up_proj", "experts.up_proj", "experts.down_proj"];

const LAYOUTS: &[Layout] = &[
    Layout::Each(["gate_proj", "up_proj", "down_proj"]),
    Layout::Each(["w1", "w3", "w2"]),
    Layout::Stacked { names: PLAIN, transposed: false },
    Layout::Stacked { names: PLAIN, transposed: true },
    Layout::Stacked {
        names: ["input_linear.weight", "input_linear.weight", "output_linear.weight"],
        transposed: false,
    },
    Layout::Apart { transposed: false },
    Layout::Apart { transposed: true },
];

/// Module names of feed-forward parts.
const MODULES: &[&str] = &["block_sparse_moe", "mlp", "feed_forward", "mixer"];

type Tensors = BTreeMap<String, Tensor>;

fn read(folder: &Path) -> Tensors {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |view: TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

fn write(folder: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, tensor)| {
        (name.clone(), TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap())
    });
    serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

/// Takes the experts out, by the module that holds them.
fn take_experts(tensors: &mut Tensors) -> BTreeMap<String, Vec<Expert>> {
    let mut found: BTreeMap<String, BTreeMap<usize, Expert>> = BTreeMap::new();
    let names: Vec<String> = tensors.keys().cloned().collect();
    for down in names {
        let each = down.split_once(".experts.").and_then(|(module, rest)| {
            let (expert, part) = rest.split_once('.')?;
            let parts = match part {
                "down_proj.weight" => ["gate_proj", "up_proj"],
                "w2.weight" => ["w1", "w3"],
                _ => return None,
            };
            Some((module.to_owned(), expert.parse::<usize>().ok()?, parts))
        });
        if let Some((module, expert, [gate, up])) = each {
            let mut take =
                |part: &str| tensors.remove(&format!("{module}.experts.{expert}.{part}.weight"));
            let (gate, up) = (take(gate), take(up).unwrap());
            let down = tensors.remove(&down).unwrap();
            found.entry(module).or_default().insert(expert, (gate, up, down));
            continue;
        }
        let stacked = [
            ("output_linear.weight", "input_linear.weight"),
            ("experts.down_proj", "experts.gate_up_proj"),
        ];
        let whole =
            stacked.iter().find_map(|(down_name, up)| Some((down.strip_suffix(down_name)?, *up)));
        let is_stacked = tensors.get(&down).is_some_and(|tensor| tensor.shape.len() == 3);
        if let Some((module, up)) = whole.filter(|_| is_stacked) {
            let ups = tensors.remove(&format!("{module}{up}")).unwrap();
            let downs = tensors.remove(&down).unwrap();
            let [count, two, hidden] = [ups.shape[0], ups.shape[1], downs.shape[1]];
            let expert = |e: usize| {
                let (first, middle, end) = (e * two, e * two + two / 2, (e + 1) * two);
                let (gate, up) = (ups.rows(first, middle), ups.rows(middle, end));
                (Some(gate), up, downs.rows(e * hidden, (e + 1) * hidden))
            };
            let all = (0..count).map(|e| (e, expert(e))).collect();
            found.insert(module.trim_end_matches('.').to_owned(), all);
        }
    }
    found.into_iter().map(|(module, all)| (module, all.into_values().collect())).collect()
}

/// Puts experts back in a layout; false where it cannot have them.
fn put_experts(tensors: &mut Tensors, module: &str, experts: &[Expert], layout: Layout) -> bool {
    let turn = |tensor: &Tensor, transposed: bool| match transposed {
        true => tensor.transposed(),
        false => tensor.clone(),
    };
    let all = |of: &dyn Fn(&Expert) -> Tensor, transposed: bool| {
        Tensor::stacked(&experts.iter().map(|e| turn(&of(e), transposed)).collect::<Vec<_>>())
    };
    let gated = experts[0].0.is_some();
    match layout {
        Layout::Each(names) => {
            for (at, (gate, up, down)) in experts.iter().enumerate() {
                let parts = [gate.as_ref(), Some(up), Some(down)];
                for (name, part) in names.iter().zip(parts) {
                    let Some(part) = part else { continue };
                    let name = format!("{module}.experts.{at}.{name}.weight");
                    tensors.insert(name, part.clone());
                }
            }
        }
        Layout::Stacked { names: [both, alone, down], transposed } => {
            let ups = |(gate, up, _): &Expert| match gate {
                Some(gate) => Tensor::below(&[gate, up]),
                None => up.clone(),
            };
            let up = if gated { both } else { alone };
            tensors.insert(format!("{module}.{up}"), all(&ups, transposed));
            tensors
                .insert(format!("{module}.{down}"), all(&|(_, _, down)| down.clone(), transposed));
        }
        Layout::Apart { .. } if !gated => return false,
        Layout::Apart { transposed } => {
            let gate = all(&|(gate, ..)| gate.clone().unwrap(), transposed);
            tensors.insert(format!("{module}.experts.gate_proj"), gate);
            tensors.insert(
                format!("{module}.experts.up_proj"),
                all(&|(_, up, _)| up.clone(), transposed),
            );
            tensors.insert(
                format!("{module}.experts.down_proj"),
                all(&|(_, _, down)| down.clone(), transposed),
            );
        }
    }
    true
}

fn logits(folder: &Path) -> Result<Vec<f32>, ModelError> {
    let device = device::open(BackendKind::Cpu).unwrap();
    let capacity = Capacity { sequences: 1, tokens: 24 };
    let mut engine = open(Model::read(folder)?, device, Storage::F32, capacity)?;
    let ids: Vec<u32> = (0..24).map(|at| at * 181 % 509).collect();
    engine.step(&Batch::new().with(0, &ids), Wanted::Every)
}

fn drawn(name: &str) -> (tempfile::TempDir, Vec<f32>, Tensors) {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions { seed: 5, layers: None, shard_bytes: usize::MAX };
    synth(shape(name).unwrap(), folder.path(), &options).unwrap();
    let (wanted, tensors) = (logits(folder.path()).unwrap(), read(folder.path()));
    (folder, wanted, tensors)
}

#[test]
fn every_family_reads_experts_in_every_layout() {
    for name in FAMILIES {
        let (folder, wanted, tensors) = drawn(name);
        let mut tried = 0;
        for layout in LAYOUTS {
            let mut rewritten = tensors.clone();
            let experts = take_experts(&mut rewritten);
            assert!(!experts.is_empty(), "{name}");
            let put = experts
                .iter()
                .all(|(module, experts)| put_experts(&mut rewritten, module, experts, *layout));
            if !put {
                continue;
            }
            write(folder.path(), &rewritten);
            let found = logits(folder.path());
            let found = found.unwrap_or_else(|error| panic!("{name} {layout:?}: {error}"));
            assert!(found == wanted, "{name} {layout:?} gives other logits");
            tried += 1;
        }
        assert!(tried >= 5, "{name}");
    }
}

/// A model saved without its original names has those of transformers' classes, and a base model's names have no prefix.
#[test]
fn every_family_reads_the_names_of_other_savers() {
    for name in FAMILIES {
        let (folder, wanted, tensors) = drawn(name);
        let rename = |tensors: &Tensors, rename: &dyn Fn(&str) -> String| -> Tensors {
            tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect()
        };
        for module in MODULES {
            // A Nemotron-H layer has one module, a mixer whatever it does.
            let is_in = |name: &str, module: &str| name.contains(&format!(".{module}."));
            let other = |name: &str| match MODULES[..3].iter().find(|own| is_in(name, own)) {
                Some(own) => name.replacen(&format!(".{own}."), &format!(".{module}."), 1),
                None => name.to_owned(),
            };
            write(folder.path(), &rename(&tensors, &other));
            let found = logits(folder.path()).unwrap_or_else(|e| panic!("{name} {module}: {e}"));
            assert!(found == wanted, "{name} {module}");
        }
        let base = |name: &str| {
            let prefixes = ["model.language_model.", "model.", "backbone."];
            let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
            rest.unwrap_or(name).to_owned()
        };
        write(folder.path(), &rename(&tensors, &base));
        let found = logits(folder.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(found == wanted, "{name}");
    }
}

/// transformers' own class of Kimi Linear stacks the three convolutions, and its forget gate is a module.
#[test]
fn kimis_convolutions_are_read_stacked() {
    let (folder, wanted, mut tensors) = drawn("kimi-linear-mini");
    let names: Vec<String> = tensors.keys().cloned().collect();
    for name in names.iter().filter(|name| name.ends_with("q_conv1d.weight")) {
        let take = |part: &str| name.replace("q_conv1d", part);
        let parts = ["q_conv1d", "k_conv1d", "v_conv1d"];
        let parts = parts.map(|part| tensors.remove(&take(part)).unwrap());
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let shape = [&[rows][..], &parts[0].shape[1..]].concat();
        let bytes = parts.iter().flat_map(|part| part.bytes.clone()).collect();
        tensors.insert(take("conv1d"), Tensor { dtype: parts[0].dtype, shape, bytes });
    }
    for name in names {
        for part in ["f_a_proj", "f_b_proj", "dt_bias", "A_log"] {
            let own = format!(".self_attn.{part}");
            if name.contains(&own) {
                let tensor = tensors.remove(&name).unwrap();
                let other = format!(".self_attn.forget_gate.{part}");
                tensors.insert(name.replace(&own, &other), tensor);
            }
        }
    }
    write(folder.path(), &tensors);
    assert!(logits(folder.path()).unwrap() == wanted);
}

/// A head next to the embedding that it is tied to may be there, but not another one.
#[test]
fn a_tied_head_that_is_not_the_embedding_is_refused() {
    let (folder, wanted, mut tensors) = drawn("qwen2-mini");
    let table = tensors["model.embed_tokens.weight"].clone();
    let tied = !tensors.contains_key("lm_head.weight");
    assert!(tied, "the shape is of a model whose head is its embedding");
    tensors.insert("lm_head.weight".to_owned(), table.clone());
    write(folder.path(), &tensors);
    assert!(logits(folder.path()).unwrap() == wanted);
    let mut other = table;
    *other.bytes.last_mut().unwrap() ^= 0x40;
    tensors.insert("lm_head.weight".to_owned(), other);
    write(folder.path(), &tensors);
    let error = logits(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("config.json: `tie_word_embeddings` is true"), "{error}");
}

#[test]
fn a_part_of_the_experts_is_named() {
    let (folder, _, mut tensors) = drawn("qwen3-moe-mini");
    let gone = tensors.keys().find(|name| name.contains("experts.1.up_proj")).unwrap().clone();
    tensors.remove(&gone);
    write(folder.path(), &tensors);
    let error = logits(folder.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("lacks 1 tensor that the config wants: `{gone}`")), "{error}");
}
