use crate::alter::gather;
use crate::naive::largest_logits;
use crate::{Fault, FaultInput};
use ops::{Settings, Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "causal mask aligned at the top left", plant: top_left },
    Fault { name: "scale forgotten", plant: |given| given.set("scale", "1") },
    Fault { name: "window off by one", plant: window },
    Fault { name: "causal mask off by one", plant: causal },
    Fault { name: "softcap forgotten", plant: |given| given.unset(&["softcap"]) },
    Fault { name: "lse without the maximum", plant: lse_without_max },
    Fault { name: "query head h reads key head h % Hkv", plant: interleaved_heads },
    Fault { name: "block table ignored", plant: |given| given.with(&["block_table"], identity) },
    Fault { name: "cache length ignored", plant: |given| given.without("cache_seqlens") },
    Fault { name: "packed sequences see one another", plant: one_sequence },
    Fault { name: "lse of a blind row is finite", plant: finite_blind_rows },
    Fault { name: "last key block left out", plant: last_keys },
    Fault { name: "values are the last channels of the keys", plant: last_channels },
];

pub(crate) const BACKWARD: &[Fault] = &[
    Fault { name: "scale forgotten", plant: |given| given.set("scale", "1") },
    Fault { name: "window off by one", plant: window },
    Fault { name: "causal mask off by one", plant: causal },
    Fault { name: "slope of the soft cap left out", plant: |given| given.unset(&["softcap"]) },
    Fault { name: "gradient of lse left out", plant: |given| given.without("dlse") },
    Fault { name: "delta of the next row", plant: |given| given.with(&["o"], next_row) },
    Fault { name: "delta left out", plant: |given| given.with(&["o"], zeros) },
    Fault { name: "lse of the next row", plant: |given| given.with(&["lse"], next_lse) },
    Fault { name: "packed sequences see one another", plant: one_sequence },
    Fault { name: "last query left out of dk", plant: |given| last_query_left_out(given, "dk") },
    Fault { name: "last query left out of dv", plant: |given| last_query_left_out(given, "dv") },
    Fault { name: "dk and dv of one head of a group", plant: one_head_of_a_group },
];

/// The rows of o, each in the place of the one before it.
fn next_row(o: &Tensor) -> Tensor {
    let mut values = o.to_f64();
    values.rotate_left(o.shape().last().copied().unwrap_or(0).min(o.len()));
    Tensor::new(o.shape(), values).cast(o.dtype())
}

fn zeros(o: &Tensor) -> Tensor {
    Tensor::new(o.shape(), vec![0.0; o.len()]).cast(o.dtype())
}

fn next_lse(lse: &Tensor) -> Tensor {
    let mut values = lse.to_f64();
    values.rotate_left(1.min(lse.len()));
    Tensor::new(lse.shape(), values).cast(lse.dtype())
}

fn last_query_left_out(given: &FaultInput<'_>, output: &str) -> Option<TensorMap> {
    let row = given.inputs["do"].shape().iter().rev().take(2).product();
    given.without_last_row(output, row)
}

/// do is 0 in all heads but the first of each group, so that only these contribute.
fn one_head_of_a_group(given: &FaultInput<'_>) -> Option<TensorMap> {
    let [.., heads, dim] = *given.inputs["do"].shape() else { return None };
    let group = heads / given.inputs["k"].shape().iter().rev().nth(1)?;
    let mut wrong = given.with(&["do"], |d_o| {
        let mut values = d_o.to_f64();
        for (row, values) in values.chunks_mut(dim).enumerate() {
            if row % heads % group > 0 {
                values.fill(0.0);
            }
        }
        Tensor::new(d_o.shape(), values).cast(d_o.dtype())
    })?;
    wrong.retain(|name, _| name != "dq");
    (group > 1).then(|| given.partly(Some(wrong)))?
}

/// Key j is visible to query i iff j <= i: only the first Tq keys.
fn top_left(given: &FaultInput<'_>) -> Option<TensorMap> {
    let (queries, keys) = (given.inputs["q"].shape(), given.inputs["k"].shape());
    let causal = given.setting("causal") == Some("true") && given.is_dense();
    (causal && keys[1] > queries[1])
        .then(|| given.with(&["k", "v"], |tensor| gather(tensor, 1, queries[1], |j| j)))?
}

fn window(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.under(|name, value| match name {
        "window_left" => Some((value.parse::<usize>().unwrap() + 1).to_string()),
        _ => Some(value.to_owned()),
    })
}

/// Each query attends to one more key: bottom-right alignment with a window of 1 to the right.
fn causal(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.setting("causal")?;
    let settings = given.settings.clone().with("causal", false).with("window_right", 1);
    given.run(given.inputs, &settings)
}

fn lse_without_max(given: &FaultInput<'_>) -> Option<TensorMap> {
    let plain = given.is_dense() && given.settings.iter().all(|(name, _)| name == "causal");
    let largest = plain.then(|| largest_logits(given))?;
    Some(given.replacing("lse", |lse| {
        lse.iter_mut().zip(&largest).for_each(|(lse, max)| {
            *lse -= if max.is_finite() { *max } else { 0.0 };
        })
    }))
}

fn interleaved_heads(given: &FaultInput<'_>) -> Option<TensorMap> {
    let (heads, kv_heads) = (given.inputs["q"].shape().get(2)?, given.inputs["k"].shape()[2]);
    (given.is_dense() && *heads > kv_heads)
        .then(|| given.with(&["k", "v"], |tensor| gather(tensor, 2, *heads, |h| h % kv_heads)))?
}

fn identity(table: &Tensor) -> Tensor {
    let blocks = table.to_f64().iter().fold(0.0, |most: f64, block| most.max(*block)) as i32 + 1;
    Tensor::new(table.shape(), (0..table.len() as i32).map(|at| at % blocks).collect::<Vec<i32>>())
}

fn one_sequence(given: &FaultInput<'_>) -> Option<TensorMap> {
    if given.inputs.contains_key("cu_seqlens_k") {
        return None;
    }
    given.with(&["cu_seqlens"], |offsets| {
        let total = offsets.to_f64()[offsets.len() - 1] as i32;
        Tensor::new(&[2], vec![0, total])
    })
}

fn finite_blind_rows(given: &FaultInput<'_>) -> Option<TensorMap> {
    let blind = given.right["lse"].to_f64().contains(&f64::NEG_INFINITY);
    blind.then(|| {
        given.replacing("lse", |lse| {
            lse.iter_mut().filter(|lse| **lse == f64::NEG_INFINITY).for_each(|lse| *lse = -1e30);
        })
    })
}

fn last_keys(given: &FaultInput<'_>) -> Option<TensorMap> {
    let keys = given.inputs["k"].shape()[1];
    let whole = keys / 16 * 16;
    (given.is_dense() && given.settings.iter().next().is_none() && 0 < whole && whole < keys)
        .then(|| given.with(&["k", "v"], |tensor| gather(tensor, 1, whole, |j| j)))?
}

fn last_channels(given: &FaultInput<'_>) -> Option<TensorMap> {
    let width: usize = given.setting("value_width")?.parse().unwrap();
    let keys = &given.inputs["k"];
    let (dim, mut shape) = (*keys.shape().last()?, keys.shape().to_vec());
    *shape.last_mut()? = width;
    let values = keys.to_f64();
    let values: Vec<f64> =
        values.chunks(dim).flat_map(|row| row[dim - width..].iter().copied()).collect();
    let mut inputs = given.inputs.clone();
    inputs.insert("v".to_owned(), Tensor::new(&shape, values).cast(keys.dtype()));
    let settings = given.settings.iter().filter(|(name, _)| *name != "value_width");
    let settings = settings.fold(Settings::new(), |all, (name, value)| all.with(name, value));
    given.run(&inputs, &settings)
}
