use crate::params::Param;
use crate::{
    Architecture, Capacity, Config, Footprint, LargestStep, Mixer, ShardRank, UnexpandedWeights,
    WeightStorage, shape, with_fp8_weights, with_int_weights,
};
use std::collections::BTreeMap;

fn whole(name: &str) -> Architecture {
    with(name, &[])
}

/// A shape with other counts.
fn with(name: &str, changes: &[(&str, usize)]) -> Architecture {
    Architecture::of(&changed(shape(name).unwrap(), changes)).unwrap()
}

fn changed(config: Config, changes: &[(&str, usize)]) -> Config {
    changes.iter().fold(config, |config, (key, count)| config.with(key, (*count).into()))
}

/// Falcon-H1 with heads for four ranks, two of which share each group.
const EIGHT_HEADS: &[(&str, usize)] = &[("mamba_n_heads", 8), ("mamba_d_ssm", 128)];

fn shards(of: &Architecture, ranks: usize) -> Vec<Architecture> {
    (0..ranks).map(|rank| of.shard(ShardRank { rank, ranks }).unwrap()).collect()
}

/// How many ranks have each value of a parameter.
fn covered(name: &str, len: usize, shards: &[Architecture]) -> Vec<u8> {
    let mut times = vec![0; len];
    for shard in shards {
        let of_name = |param: &&Param| param.name == name;
        for param in shard.params.iter().filter(of_name) {
            match &param.cut {
                Some(cut) => {
                    let runs = cut.runs(0, len);
                    runs.flatten().for_each(|at| times[at] += 1);
                    let own: usize = cut.runs(0, len).map(|run| run.len()).sum();
                    assert_eq!(own, param.len(), "{name}");
                }
                None => times.iter_mut().for_each(|times| *times += 1),
            }
        }
    }
    times
}

/// Every value of every parameter is on one rank, or on all ranks that need it.
#[test]
fn ranks_share_out_every_value_once() {
    for (name, changes, ranks) in [
        ("granite-hybrid-mini", &[][..], 2),
        ("granite-hybrid-mini", &[], 4),
        ("granite-moe-mini", &[], 2),
        ("kimi-linear-mini", &[], 4),
        ("qwen3-moe-mini", &[], 2),
        ("falcon-h1-mini", &[], 2),
        ("falcon-h1-mini", EIGHT_HEADS, 4),
        ("lfm2-mini", &[], 4),
        ("lfm2-moe-mini", &[], 2),
        ("nemotron-mini", &[("moe_latent_size", 32)], 2),
        ("qwen3-next-mini", &[], 2),
        ("mamba-mini", &[], 4),
        ("jamba-mini", &[], 2),
    ] {
        let whole = with(name, changes);
        let shards = shards(&whole, ranks);
        for param in whole.params.iter() {
            let times = covered(&param.name, param.len(), &shards);
            let embeds = |part| param.name.contains(part);
            let tied = whole.is_tied() && (embeds("embed_tokens") || embeds("embeddings"));
            let head = u8::from(tied);
            let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
            let names = |parts: &[&str]| parts.iter().any(|part| param.name.contains(part));
            let alike =
                names(&["norm.weight", "layernorm", "embed", "router", ".gate.", "f_a_", "g_a_"])
                    || names(&["norm_f", "expert_gate", "expert_bias", "latent_proj"]);
            let everywhere = ranks as u8 + head;
            match (names(&["mamba.norm", "mixer.norm"]), alike) {
                (false, true) => {
                    assert_eq!((least, most), (everywhere, everywhere), "{}", param.name)
                }
                // B and C, the latent vector, and keys if there are fewer than ranks.
                _ if most > 1 => {
                    let replicated = ["mamba.in_proj", "conv1d", "kv_a_", "k_proj", "v_proj"];
                    assert!(names(&replicated), "{}", param.name);
                    assert!(least >= 1 && most <= ranks as u8, "{} {least} {most}", param.name);
                }
                _ => assert_eq!((least, most), (1, 1), "{}", param.name),
            }
        }
    }
}

#[test]
fn layers_have_their_shares_of_heads_and_widths() {
    let micro = &shards(&whole("granite-4.0-h-micro"), 2)[1];
    let by_name: BTreeMap<&str, &[usize]> =
        micro.params.iter().map(|param| (&*param.name, &*param.shape)).collect();
    let check = |name: &str, expect: &[usize]| assert_eq!(by_name[name], expect, "{name}");
    // 64 heads of 64 channels, of which this rank has 32; B and C of 128 are whole.
    check("model.layers.0.mamba.in_proj.weight", &[2 * 2048 + 2 * 128 + 32, 2048]);
    check("model.layers.0.mamba.conv1d.weight", &[2048 + 2 * 128, 1, 4]);
    check("model.layers.0.mamba.A_log", &[32]);
    check("model.layers.0.mamba.norm.weight", &[2048]);
    check("model.layers.0.mamba.out_proj.weight", &[2048, 2048]);
    check("model.layers.0.shared_mlp.input_linear.weight", &[8192, 2048]);
    check("model.layers.0.shared_mlp.output_linear.weight", &[2048, 4096]);
    assert_eq!((micro.head.outputs(), micro.first_of_head()), (100_352 / 2, 100_352 / 2));

    let kimi = &shards(&whole("kimi-linear-mini"), 4)[3];
    let by_name: BTreeMap<&str, &[usize]> =
        kimi.params.iter().map(|param| (&*param.name, &*param.shape)).collect();
    let check = |name: &str, expect: &[usize]| assert_eq!(by_name[name], expect, "{name}");
    check("model.layers.0.self_attn.A_log", &[1, 1, 1, 1]);
    check("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", &[40, 64]);
    check("model.layers.1.self_attn.kv_b_proj.weight", &[32, 32]);
    check("model.layers.1.block_sparse_moe.experts.5.w1.weight", &[0, 64]);
    check("model.layers.1.block_sparse_moe.experts.6.w1.weight", &[32, 64]);
    assert_eq!(
        kimi.layers[1].experts.as_ref().map(|of| (of.first, of.experts.len())),
        Some((6, 2))
    );
}

/// Sections of one projection are cut separately, whatever their multipliers are.
#[test]
fn sections_have_their_shares_each() {
    let check = |of: &Architecture, name: &str, expect: &[(usize, usize)]| {
        let param = of.params.iter().find(|param| param.name == name).unwrap();
        let rows = param.cut.as_ref().unwrap().rows(0..usize::MAX);
        let rows: Vec<_> = rows.map(|run| (run.start, run.end)).collect();
        assert_eq!(rows, expect, "{name}");
    };
    // Gate and x of 128, B and C of two groups of 32, 8 step sizes; ranks 2 and 3 have the second group.
    let falcon = &shards(&with("falcon-h1-mini", EIGHT_HEADS), 4)[2];
    let sections = [(64, 96), (192, 224), (288, 320), (352, 384), (388, 390)];
    check(falcon, "model.layers.0.mamba.in_proj.weight", &sections);
    let convolved = [(64, 96), (160, 192), (224, 256)];
    check(falcon, "model.layers.0.mamba.conv1d.weight", &convolved);
    check(falcon, "model.layers.0.self_attn.k_proj.weight", &[(16, 32)]);
    let Mixer::Parallel(of) = &falcon.layers[0].mixer else { panic!("{:?}", falcon.layers[0]) };
    // Step sizes follow the other rows.
    let steps = &of.mamba.dt_proj.as_ref().unwrap().rows;
    assert_eq!(steps.iter().map(|rows| (rows.first, rows.count)).collect::<Vec<_>>(), [(128, 2)]);
    // B, C and x of 64 each.
    let lfm2 = &shards(&whole("lfm2-mini"), 4)[1];
    check(lfm2, "model.layers.0.conv.in_proj.weight", &[(16, 32), (80, 96), (144, 160)]);
    check(lfm2, "model.layers.0.conv.conv.weight", &[(16, 32)]);
    assert_eq!(lfm2.layers[0].mixer.states().convolved, 16 * 2);
    // A key head's query, key, two values and two gates are consecutive, followed by the scalars of its value heads.
    let next = &shards(&whole("qwen3-next-mini"), 2)[1];
    check(next, "model.layers.0.linear_attn.in_proj_qkvz.weight", &[(192, 384)]);
    check(next, "model.layers.0.linear_attn.in_proj_ba.weight", &[(4, 8)]);
    check(next, "model.layers.0.linear_attn.conv1d.weight", &[(32, 64), (96, 128), (192, 256)]);
    check(next, "model.layers.0.linear_attn.A_log", &[(2, 4)]);
}

#[test]
fn layers_that_do_not_split_are_refused() {
    let check = |of: Architecture, ranks, what: &str, hint: &str| {
        let error = of.shard(ShardRank { rank: 0, ranks }).unwrap_err();
        assert_eq!(error.to_string(), format!("the model cannot be split: {what}"));
        assert_eq!(error.hint, hint);
    };
    let moe = || whole("granite-moe-mini");
    check(moe(), 3, "8 heads of Mamba-2 do not split evenly over 3 ranks", "use --tp 2");
    check(moe(), 4, "2 groups of Mamba-2 do not split evenly over 4 ranks", "use --tp 2");
    let uneven = "112 channels of Mamba do not split evenly over 3 ranks";
    check(whole("mamba-mini"), 3, uneven, "use --tp 2 or 4 or 8 or 16");
    // The all-reduce completes one norm; parts of groups have no separate all-reduce.
    let normed = |groups| {
        let config = changed(shape("falcon-h1-mini").unwrap(), EIGHT_HEADS);
        let config = config.with("mamba_rms_norm", true.into());
        Architecture::of(&changed(config, &[("mamba_n_groups", groups)])).unwrap()
    };
    let parallel = "Mamba-2's norm over all ranks is next to attention";
    check(normed(1), 2, parallel, "leave --tp out");
    check(normed(2), 4, "2 groups of Mamba-2 do not split evenly over 4 ranks", "use --tp 2");
    // 64 of 128 columns are half of a group.
    let narrow = with_int_weights(shape("granite-hybrid-mini").unwrap(), 4).unwrap();
    let what = "`model.layers.0.mamba.out_proj.weight` is in int4 in groups of 128 columns, and column 64 is inside one";
    check(Architecture::of(&narrow).unwrap(), 2, what, "leave --tp out");
    assert!(
        moe().shard(ShardRank::WHOLE).is_ok_and(|one| one.params.count() == moe().params.count())
    );
}

/// Two ranks together have one model's memory, plus once what both need: embedding, B and C, latent vectors, norms.
#[test]
fn a_rank_takes_its_share_of_memory() {
    let holding = WeightStorage {
        weight_bytes: 2,
        cache_bytes: 2,
        conv_bytes: 4,
        block: 64,
        spare_blocks: 1,
        state_pools: 1,
        activation_bytes: 2,
        keeps: UnexpandedWeights::Projections,
        embedding: true,
    };
    let capacity = Capacity { sequences: 1, tokens: 4096 };
    let step = LargestStep { tokens: 1, logits: 1 };
    let of = |architecture: &Architecture| Footprint::new(architecture, holding, capacity, step);
    let micro = whole("granite-4.0-h-micro");
    let shards = |of| shards(of, 2);
    let [one, first, second] = [&micro, &shards(&micro)[0], &shards(&micro)[1]].map(of);
    assert_eq!(first, second);
    // 36 layers of 2 x 128 rows of 2048 and their taps and biases; 81 norms of 2048.
    let shared = 36 * (256 * 2048 * 2 + 256 * 5 * 4) + 81 * 2048 * 4;
    // A rank's half of the head is in the embedding, which both have.
    assert_eq!(2 * first.weights, one.weights + 100_352 * 2048 * 2 + shared);
    assert!(2 * first.states > one.states && first.states < one.states * 52 / 100);
    assert_eq!(2 * first.caches, one.caches);
    // In float8 a rank has half of the values, and the scales of its rows.
    let narrow =
        Architecture::of(&with_fp8_weights(shape("granite-4.0-h-micro").unwrap())).unwrap();
    let [one, first] = [&narrow, &narrow.shard(ShardRank { rank: 0, ranks: 2 }).unwrap()].map(of);
    let wide = 100_352 * 2048 * 2;
    assert!((first.weights - wide) as f64 / ((one.weights - wide) as f64) < 0.52, "{first:?}");
    let kimi = whole("kimi-linear-48b-a3b");
    let [one, first] = [&kimi, &shards(&kimi)[0]].map(of);
    assert!(first.weights as f64 / (one.weights as f64) < 0.52, "{first:?} of {one:?}");
    assert_eq!((first.caches, 2 * first.states), (one.caches, one.states));
}
