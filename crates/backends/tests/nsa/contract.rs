//! Calls that nsa must refuse, with their messages.

use crate::case::Case;
use ops::nsa::NsaOp;
use ops::{DType, Op, Tensor};

#[track_caller]
fn refused(case: Case, change: impl Fn(&mut ops::TensorMap), expect: &str) {
    let mut tensors = case.tensors(DType::Bf16);
    change(&mut tensors);
    match NsaOp.bind(&tensors, &case.settings) {
        Ok(_) => panic!("accepted, wanted: {expect}"),
        Err(error) => assert_eq!(error.to_string(), expect),
    }
}

fn case() -> Case {
    Case::dense("contract", 2, 10, 40).heads(4, 2).sizes(8, 6)
}

fn put(name: &'static str, shape: &'static [usize], dtype: DType) -> impl Fn(&mut ops::TensorMap) {
    move |tensors| {
        let zeros = vec![0f64; shape.iter().product()];
        tensors.insert(name.into(), Tensor::new(shape, zeros).cast(dtype));
    }
}

#[test]
fn invalid_tensors_are_named() {
    let same = |_: &mut ops::TensorMap| ();
    refused(
        case().branches(""),
        same,
        "nsa: tensor `g_cmp, g_slc or g_swa` [B, Tq, HQ] is missing",
    );
    for (name, shape, words) in [
        (
            "k",
            &[2, 40, 2, 7][..],
            "nsa: tensor `k` has shape [2, 40, 2, 7], wanted [B=2, T=40, Hkv, D=8]",
        ),
        ("k", &[3, 40, 2, 8], "nsa: tensor `k` has shape [3, 40, 2, 8], wanted [B=2, Tk, Hkv, D]"),
        (
            "k",
            &[2, 40, 3, 8],
            "nsa: tensor `v` has shape [2, 40, 2, 6], wanted [B=2, T=40, Hkv=3, Dv]",
        ),
        (
            "v",
            &[2, 39, 2, 6],
            "nsa: tensor `v` has shape [2, 39, 2, 6], wanted [B=2, T=40, Hkv=2, Dv]",
        ),
        (
            "v",
            &[2, 40, 2, 0],
            "nsa: tensor `v` has shape [2, 40, 2, 0], wanted a value size Dv of 1 or more",
        ),
        (
            "g_swa",
            &[2, 10, 2],
            "nsa: tensor `g_swa` has shape [2, 10, 2], wanted [B=2, T=10, HQ=4]",
        ),
        (
            "g_cmp",
            &[2, 40, 4],
            "nsa: tensor `g_cmp` has shape [2, 40, 4], wanted [B=2, T=10, HQ=4]",
        ),
        (
            "q",
            &[2, 10, 3, 8],
            "nsa: tensor `q` has shape [2, 10, 3, 8], wanted a number of heads HQ divisible by the 2 of `k`",
        ),
    ] {
        refused(case(), put(name, shape, DType::Bf16), words);
    }
    refused(
        case(),
        put("v", &[2, 40, 2, 6], DType::F16),
        "nsa: tensor `v` is f16, wanted bf16 like the op's first tensor",
    );
    refused(
        case(),
        put("q", &[2, 10, 4, 8], DType::F64),
        "nsa: tensor `q` is f64, wanted f32, bf16 or f16",
    );
    refused(
        case(),
        put("g_cmp", &[2, 10, 4], DType::F16),
        "nsa: tensor `g_cmp` is f16, wanted f32, or bf16 like `q`",
    );
    refused(
        case(),
        put("cu_seqlens_k", &[3], DType::I32),
        "nsa: tensor `cu_seqlens_k` needs `cu_seqlens` too",
    );
    refused(
        Case::packed("packed", &[(3, 5), (4, 4)]),
        |tensors| {
            tensors.insert("cu_seqlens_k".into(), Tensor::new(&[2], vec![0i32, 9]));
        },
        "nsa: tensor `cu_seqlens_k` has 1 sequences, wanted the 2 of `cu_seqlens`",
    );
}

#[test]
fn invalid_selections_and_weights_are_named() {
    let blocks = put("block_indices", &[2, 10, 2, 3], DType::I32);
    refused(
        case().branches("cw"),
        &blocks,
        "nsa: tensor `block_indices` needs `g_slc`, the gate of the branch that reads it",
    );
    refused(
        case().set("select_count", 5),
        &blocks,
        "nsa: setting `select_count` is `5`, wanted the 3 of `block_indices`",
    );
    refused(
        case(),
        put("block_indices", &[2, 10, 2, 3], DType::F32),
        "nsa: tensor `block_indices` is f32, wanted i32",
    );
    refused(
        case(),
        |tensors| {
            tensors.insert("block_indices".into(), Tensor::new(&[2, 10, 2, 1], vec![-7i32; 40]));
        },
        "nsa: tensor `block_indices` is -7 at element 0, wanted a block index, or -1 for none",
    );
    refused(
        case(),
        put("cmp_k_weight", &[2, 256, 8], DType::Bf16),
        "nsa: tensor `cmp_k_weight` needs `pooling=learned`",
    );
    refused(
        case().set("pooling", "learned"),
        |_| (),
        "nsa: tensor `cmp_k_weight` [Hkv, l * D, D] is missing",
    );
    refused(
        case().set("pooling", "learned"),
        put("cmp_k_weight", &[2, 255, 8], DType::Bf16),
        "nsa: tensor `cmp_k_weight` has shape [2, 255, 8], wanted [Hkv=2, l * D=256, D=8]",
    );
}

#[test]
fn invalid_settings_are_named() {
    for (name, value, words) in [
        ("causal", "false", "`causal` is `false`, wanted true: NSA is causal by definition"),
        ("compress_block", "0", "`compress_block` is `0`, wanted 1 to 1073741824"),
        (
            "compress_stride",
            "33",
            "`compress_stride` is `33`, wanted at most compress_block = 32, or tokens are lost",
        ),
        (
            "select_count",
            "2",
            "`select_count` is `2`, wanted initial_blocks + local_blocks = 3 or more",
        ),
        ("select_count", "100000", "`select_count` is `100000`, wanted 1 to 65536"),
        ("window", "0", "`window` is `0`, wanted 1 to 1073741824"),
        ("pooling", "max", "`pooling` is `max`, wanted one of mean, learned"),
        ("gate", "tanh", "`gate` is `tanh`, wanted one of given, sigmoid, softmax"),
        (
            "overlap",
            "false",
            "`overlap` is `false`, wanted true unless compress_block, compress_stride and select_block are equal, they are 32, 16 and 64",
        ),
    ] {
        refused(case().set(name, value), |_| (), &format!("nsa: setting {words}"));
    }
}

#[test]
fn every_output_and_variant_is_in_the_table() {
    let case = case();
    let tensors = case.tensors(DType::F16);
    let call = NsaOp.bind(&tensors, &case.settings).unwrap();
    let outputs: Vec<_> = call
        .problem()
        .outputs()
        .into_iter()
        .map(|output| (output.name, output.shape, output.dtype))
        .collect();
    assert_eq!(
        outputs,
        [
            ("o", vec![2, 10, 4, 6], DType::F16),
            ("indices", vec![2, 10, 2, 16], DType::I32),
            ("reads", vec![2, 10, 2, 3], DType::I32),
        ]
    );
    let table: Vec<_> = NsaOp.spec().outputs.iter().map(|output| output.name).collect();
    assert_eq!(table, ["o", "indices", "reads"]);
    let device = crate::case::cpu().limited_to(device::Isa::Portable);
    let selection = call.select(&device, None).unwrap();
    assert_eq!(selection.chosen, "blocked.portable");
    let refusal = |name: &str| {
        let refusal = selection.refused.iter().find(|refusal| refusal.variant == name);
        refusal.unwrap().reason.as_str()
    };
    assert_eq!(refusal("blocked.avx512bf16"), "needs avx512bf16, this processor has portable");
    assert_eq!(refusal("gather"), "runs on cuda, this device is cpu");
}
