//! Experts in every checkpoint layout: separate or stacked, as matrices or their transposes, under the names of every
//! family.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use facts::BackendKind;
use models::{
    Batch, Capacity, LogitsSelection, Model, ModelError, Storage, SynthOptions, open, shape, synth,
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

    /// Rows `first..end` of the matrix formed by all but the last dimension.
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

    /// Concatenates along the first dimension.
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

/// An expert's gate, if it has one, its up and its down matrix.
type Expert = (Option<Tensor>, Tensor, Tensor);

#[derive(Debug, Clone, Copy)]
enum Layout {
    /// Separate tensors, with the names of gate, up and down.
    Each([&'static str; 3]),
    /// Stacked tensors with the names of gate and up, of up alone, and of down.
    Stacked { names: [&'static str; 3], transposed: bool },
    /// Gate, up and down, each stacked.
    SeparateStacks { transposed: bool },
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
    Layout::SeparateStacks { transposed: false },
    Layout::SeparateStacks { transposed: true },
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

/// Removes the experts, by the module that contains them.
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

/// Adds experts in a layout; false if the layout does not support them.
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
        Layout::SeparateStacks { .. } if !gated => return false,
        Layout::SeparateStacks { transposed } => {
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
    let device = backends::open(BackendKind::Cpu).unwrap();
    let capacity = Capacity { sequences: 1, tokens: 24 };
    let mut engine = open(Model::read(folder)?, device, Storage::F32, capacity)?;
    let ids: Vec<u32> = (0..24).map(|at| at * 181 % 509).collect();
    engine.step(&Batch::new().with(0, &ids), LogitsSelection::Every)
}

fn drawn(name: &str) -> (tempfile::TempDir, Vec<f32>, Tensors) {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions { seed: 5, layers: None, shard_bytes: usize::MAX };
    synth(shape(name).unwrap(), folder.path(), &options).unwrap();
    let (wanted, tensors) = (logits(folder.path()).unwrap(), read(folder.path()));
    (folder, wanted, tensors)
}

#[test]
fn experts_load_in_every_layout_of_every_family() {
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

/// Models saved without their original names have those of transformers' classes; base models have names without a
/// prefix.
#[test]
fn tensor_names_of_transformers_classes_load_in_every_family() {
    for name in FAMILIES {
        let (folder, wanted, tensors) = drawn(name);
        let rename = |tensors: &Tensors, rename: &dyn Fn(&str) -> String| -> Tensors {
            tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect()
        };
        for module in MODULES {
            // A Nemotron-H layer has one module, named mixer whatever its kind.
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
fn stacked_convolutions_of_kimi_load() {
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

/// A head next to the embedding that it is tied to is accepted only if they are equal.
#[test]
fn tied_head_that_differs_from_the_embedding_is_refused() {
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
fn missing_experts_are_named() {
    let (folder, _, mut tensors) = drawn("qwen3-moe-mini");
    let gone = tensors.keys().find(|name| name.contains("experts.1.up_proj")).unwrap().clone();
    tensors.remove(&gone);
    write(folder.path(), &tensors);
    let error = logits(folder.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("lacks 1 tensor that the config wants: `{gone}`")), "{error}");
}
