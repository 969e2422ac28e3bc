//! Integer weights from the definitions of their packings, value by value and bit by bit. Groups have 32 columns.

use serde_json::Value;
use std::collections::HashMap;

type Tensors = HashMap<String, Vec<f64>>;
type Shapes = HashMap<String, Vec<usize>>;

/// Adds the dequantized weight of each module with packed integers.
pub(super) fn unpack(config: &Value, tensors: &mut Tensors, shapes: &Shapes) {
    let names: Vec<String> = tensors.keys().cloned().collect();
    for name in names {
        let (module, weight) = if let Some(module) = name.strip_suffix(".weight_packed") {
            (module, rows(module, tensors, shapes))
        } else if let Some(module) = name.strip_suffix(".qweight") {
            let quantised = &config["quantization_config"];
            let weight = match quantised["quant_method"].as_str() {
                Some("awq") => awq(module, tensors, shapes),
                _ => gptq(module, tensors, shapes, quantised["checkpoint_format"] == "gptq_v2"),
            };
            (module, weight)
        } else {
            continue;
        };
        tensors.insert(format!("{module}.weight"), weight);
    }
}

/// Bits of a 32-bit word.
fn bits(words: &[f64], word: usize, first: usize, count: usize) -> f64 {
    let word = (words[word] as i64) as u32;
    f64::from(word >> first & ((1 << count) - 1))
}

fn rows(module: &str, tensors: &Tensors, shapes: &Shapes) -> Vec<f64> {
    let of = |end: &str| &tensors[&format!("{module}.{end}")];
    let shape: Vec<usize> = of("weight_shape").iter().map(|side| *side as usize).collect();
    let (columns, rows) = (shape[shape.len() - 1], shape[shape.len() - 2]);
    let words = *shapes[&format!("{module}.weight_packed")].last().unwrap();
    let groups = *shapes[&format!("{module}.weight_scale")].last().unwrap();
    let size = if words == columns.div_ceil(8) { 4 } else { 8 };
    let in_word = 32 / size;
    let group = if groups == 1 { columns } else { 32 };
    let places = tensors.get(&format!("{module}.weight_g_idx"));
    let zeros = tensors.get(&format!("{module}.weight_zero_point"));
    let all: usize = shape.iter().product();
    let value = |at: usize| {
        let (row, k) = (at / columns, at % columns);
        let g = places.map_or(k / group, |places| places[k] as usize);
        let number = bits(of("weight_packed"), row * words + k / in_word, k % in_word * size, size);
        let zero = match zeros {
            None => 2f64.powi(size as i32 - 1),
            Some(zeros) => {
                let (matrix, n) = (row / rows, row % rows);
                let word = (matrix * rows.div_ceil(in_word) + n / in_word) * groups + g;
                bits(zeros, word, n % in_word * size, size)
            }
        };
        (number - zero) * of("weight_scale")[row * groups + g]
    };
    (0..all).map(value).collect()
}

fn gptq(module: &str, tensors: &Tensors, shapes: &Shapes, second: bool) -> Vec<f64> {
    let of = |end: &str| &tensors[&format!("{module}.{end}")];
    let [words, outputs] = shapes[&format!("{module}.qweight")][..] else { panic!("{module}") };
    let places = of("g_idx");
    let columns = places.len();
    let size = 32 * words / columns;
    let in_word = 32 / size;
    let across = outputs.div_ceil(in_word);
    let value = |at: usize| {
        let (n, k) = (at / columns, at % columns);
        let g = places[k] as usize;
        let number = bits(of("qweight"), k / in_word * outputs + n, k % in_word * size, size);
        let zero = bits(of("qzeros"), g * across + n / in_word, n % in_word * size, size);
        let zero = if second { zero } else { zero + 1.0 };
        (number - zero) * of("scales")[g * outputs + n]
    };
    (0..outputs * columns).map(value).collect()
}

fn awq(module: &str, tensors: &Tensors, shapes: &Shapes) -> Vec<f64> {
    let of = |end: &str| &tensors[&format!("{module}.{end}")];
    let [columns, across] = shapes[&format!("{module}.qweight")][..] else { panic!("{module}") };
    let [groups, outputs] = shapes[&format!("{module}.scales")][..] else { panic!("{module}") };
    // Nibble i of a word belongs to this one of its eight outputs.
    let outputs_of = [0, 2, 4, 6, 1, 3, 5, 7];
    let value = |at: usize| {
        let (n, k) = (at / columns, at % columns);
        let g = if groups == 1 { 0 } else { k / 32 };
        let nibble = outputs_of.iter().position(|of| *of == n % 8).unwrap();
        let number = bits(of("qweight"), k * across + n / 8, 4 * nibble, 4);
        let zero = bits(of("qzeros"), g * across + n / 8, 4 * nibble, 4);
        (number - zero) * of("scales")[g * outputs + n]
    };
    (0..outputs * columns).map(value).collect()
}
