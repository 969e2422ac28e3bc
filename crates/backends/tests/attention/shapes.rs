//! Head dimensions, groups and lengths.

use crate::case::check_inputs;
use crate::{Case, check};
use ops::{DType, Tensor};

#[test]
fn lengths_around_the_tiles() {
    // Panels hold 8 to 32 queries, tiles 96 keys; streams take up to 8 rows and tiles of 64 keys.
    for tokens in [1, 2, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 95, 96, 97, 193, 300] {
        check(&Case::new(2, tokens, 2, 64));
        check(&Case::new(1, tokens, 2, 64).causal());
    }
}

#[test]
fn blocks_of_several_panels() {
    // A block multiplies several panels with each key tile, which is only partly visible to some of them.
    for (queries, keys) in [(300, 300), (301, 390), (400, 130)] {
        let case = Case::new(1, queries, 32, 16).keys(keys);
        check(&case);
        check(&case.clone().causal());
        for (left, right) in [(0, 0), (5, 3), (33, 0), (100, 40)] {
            check(&case.clone().set("window_left", left).set("window_right", right));
        }
        check(&case.kv_heads(4).causal().set("window_left", 50));
    }
}

#[test]
fn any_head_dimension_is_supported() {
    for dim in
        [1, 2, 3, 15, 16, 17, 32, 60, 63, 65, 72, 96, 100, 127, 128, 192, 256, 320, 512, 1024]
    {
        check(&Case::new(1, 33, 2, dim).keys(70).causal());
        check(&Case::new(1, 3, 2, dim).keys(70).causal());
    }
}

#[test]
fn values_may_have_another_dimension() {
    for (dim, value_dim) in [(16, 1), (1, 16), (64, 100), (192, 128), (64, 320), (33, 65)] {
        check(&Case::new(2, 40, 2, dim).value_dim(value_dim).keys(100).causal());
        check(&Case::new(2, 1, 2, dim).value_dim(value_dim).keys(100).causal());
    }
}

#[test]
fn latent_attention_shares_one_key_head_of_576_by_512() {
    check(&Case::new(1, 1, 32, 576).value_dim(512).kv_heads(1).keys(200).causal());
    check(&Case::new(1, 5, 16, 576).value_dim(512).kv_heads(1).keys(70).causal());
}

#[test]
fn values_may_be_the_first_channels_of_the_keys() {
    let latent = Case::new(2, 1, 32, 576).value_dim(512).kv_heads(1).keys(200).causal();
    let narrow = Case::new(1, 20, 6, 60).value_dim(33).kv_heads(2).keys(70).causal();
    let packed = Case::new(1, 0, 4, 96).kv_heads(2).packed(&[(1, 70), (0, 9), (5, 0), (33, 200)]);
    let op = ops::op("attention").unwrap();
    for case in [latent, narrow, packed.value_dim(64)] {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let mut inputs = case.inputs(dtype);
            let mut shape = inputs["v"].shape().to_vec();
            *shape.last_mut().unwrap() = case.value_dim;
            let keys = inputs["k"].to_f64();
            let rows = keys.chunks(case.dim).flat_map(|row| &row[..case.value_dim]);
            let values = Tensor::new(&shape, rows.copied().collect::<Vec<f64>>()).cast(dtype);
            inputs.insert("v".into(), values);
            let apart = op.bind(&inputs, &case.settings).unwrap().reference();
            inputs.remove("v");
            let settings = case.settings.clone().with("value_width", case.value_dim);
            check_inputs(&format!("{case:?}"), &inputs, &settings);
            let call = op.bind(&inputs, &settings).unwrap();
            assert_eq!(apart["o"].to_f64(), call.reference()["o"].to_f64(), "{case:?}");
        }
    }
}

#[test]
fn groups_of_heads_share_their_keys() {
    for (heads, kv_heads) in [(2, 1), (3, 1), (6, 2), (8, 2), (8, 1), (16, 1), (20, 4), (40, 1)] {
        check(&Case::new(2, 1, heads, 64).kv_heads(kv_heads).keys(150).causal());
        check(&Case::new(1, 20, heads, 64).kv_heads(kv_heads).keys(50).causal());
    }
}

#[test]
fn third_party_shapes() {
    // FFPA: D 320..640, GQA (16, 4), lengths off the tile, decode with 1, 5 and 7 queries.
    for dim in [320, 384, 512, 640] {
        check(&Case::new(1, 130, 4, dim).kv_heads(1));
        for queries in [1, 5, 7] {
            check(&Case::new(1, queries, 16, dim).kv_heads(4).keys(260).causal());
        }
    }
}
