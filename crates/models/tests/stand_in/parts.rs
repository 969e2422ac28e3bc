//! Sequence parallelism: the copies between GPUs.

use super::*;

#[test]
fn prompt_rows_are_divided_among_gpus() {
    machine::launched("parts::prompt_rows_are_divided_among_gpus", || {
        // GPUs share memory only with this setting.
        if std::env::var_os("FAKE_CUDA_SHARED").is_none() {
            return;
        }
        // A norm over all ranks, whose sums of squares are sent with the parts, and experts, whose sums are converted
        // to bfloat16 first.
        for (name, ranks, rows) in [
            ("granite-hybrid-mini", 2, &[640, 560][..]),
            ("granite-hybrid-mini", 4, &[704, 640, 640, 616]),
            ("granite-moe-mini", 4, &[704, 640, 640, 616]),
            ("jamba-mini", 4, &[704, 640, 640, 616]),
            ("granite-hybrid-mini", 8, &[896, 896, 896, 832, 896, 896, 832, 856]),
        ] {
            kept_in_parts(name, ranks, rows);
        }
    });
}

/// A copy between GPUs: its target and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AreaCopy {
    /// The target's rank, and the offset in its memory.
    area: usize,
    at: u64,
    bytes: usize,
    /// The value and the location of its flag.
    turn: u32,
    mark: u64,
}

/// The copies between GPUs in a step, by the thread that enqueued them.
fn copies_between(areas: &[u64], told: &str) -> Vec<Vec<AreaCopy>> {
    let mut by_thread = std::collections::BTreeMap::<u64, Vec<[u64; 3]>>::new();
    for line in told.lines() {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let [thread, to, bytes, number] = numbers[..] else { panic!("{line}") };
        // Another rank's memory is within its buffer's size.
        if areas.iter().any(|area| (*area..area + (1 << 28)).contains(&to)) {
            by_thread.entry(thread).or_default().push([to, bytes, number]);
        }
    }
    let place = |to: u64| {
        let (area, start) = areas.iter().enumerate().rfind(|(_, start)| **start <= to).unwrap();
        (area, to - start)
    };
    let of_thread = |copies: Vec<[u64; 3]>| {
        let pairs = copies.as_chunks::<2>().0.iter().map(|[[to, bytes, _], mark]| {
            let ((area, at), (marked, hash_at_snapshot)) = (place(*to), place(mark[0]));
            // Each copy's flag is set after it, in the same memory.
            assert_eq!((marked, mark[1], copies.len() % 2), (area, 4, 0));
            let (bytes, turn) = (*bytes as usize, mark[2] as u32);
            AreaCopy { area, at, bytes, turn, mark: hash_at_snapshot }
        });
        pairs.collect()
    };
    by_thread.into_values().map(of_thread).collect()
}

/// A prompt whose rows are divided among ranks: the copies between GPUs and the launches.
fn kept_in_parts(name: &str, ranks: usize, rows: &[usize]) {
    // One attention head for each of eight ranks.
    let sizes =
        ["hidden_size", "intermediate_size", "shared_intermediate_size"].map(|key| (key, 128));
    let sizes = sizes.into_iter().chain([
        ("num_attention_heads", 8),
        ("mamba_d_head", 32),
        ("mamba_n_groups", 1),
    ]);
    let config =
        sizes.fold(shape(name).unwrap(), |config, (key, size)| config.with(key, size.into()));
    let whole = Model::random(&config, 1).unwrap().architecture;
    let tokens: usize = rows.iter().sum();
    let sequences = tokens.div_ceil(300);
    let capacity = Capacity { sequences, tokens: 300 };
    let log = std::env::var_os("FAKE_CUDA_COPIES").unwrap();
    let _ = std::fs::remove_file(&log);
    let (mut opened, mut told, mut counts) = (String::new(), String::new(), [0; 3]);
    split(
        (&config, StateType::F32),
        ranks,
        (capacity, LargestStep { tokens, logits: sequences }),
        |engine| {
            opened = std::fs::read_to_string(&log).unwrap();
            std::fs::remove_file(&log).unwrap();
            let ids: Vec<u32> = (0..tokens as u32).map(|id| id % 512).collect();
            let prompts = ids.chunks(300).enumerate();
            let batch = prompts.fold(Batch::new(), |batch, (slot, ids)| batch.with(slot, ids));
            engine.step(&batch, LogitsSelection::Last).unwrap();
            told = std::fs::read_to_string(&log).unwrap();
            counts = ["join_own", "meet", "join_many"]
                .map(|kernel| engine.device().launches().of(&format!("decoder.{kernel}")).count);
        },
    );
    std::fs::remove_file(std::env::var_os("FAKE_NCCL_CALLS").unwrap()).unwrap();
    let areas = opened.lines().filter_map(|line| line.strip_prefix("opened "));
    let areas: std::collections::BTreeSet<u64> = areas.map(|at| at.parse().unwrap()).collect();
    let areas: Vec<u64> = areas.into_iter().collect();
    let mut by_rank = copies_between(&areas, &told);
    assert_eq!([areas.len(), by_rank.len()], [ranks; 2], "{name}");
    // For each sum, first partial sums, then norms, to every other rank.
    let (kind, others) = (|nth: usize| nth / (ranks - 1) % 2, ranks - 1);
    // Norms are in the order of ranks, at the same offset on each GPU.
    by_rank.sort_by_key(|copies| copies[others].at);
    let first_row = by_rank[0][others].at;
    let own: Vec<usize> = by_rank
        .iter()
        .map(|copies| {
            let reached: Vec<usize> = copies.iter().map(|copy| copy.area).collect();
            (0..ranks).find(|area| !reached.contains(area)).unwrap()
        })
        .collect();
    let sums = whole.layers.iter().map(|layer| {
        let forward = layer.experts.is_some() || layer.mlp.is_some();
        usize::from(!matches!(layer.mixer, Mixer::None)) + usize::from(forward)
    });
    let (sums, hidden) = (sums.sum::<usize>(), whole.hidden);
    let mut places = vec![std::collections::BTreeMap::new(); ranks];
    for (rank, copies) in by_rank.iter().enumerate() {
        assert_eq!(copies.len(), 2 * sums * others, "{name}");
        let before: usize = rows[..rank].iter().sum();
        for (nth, copy) in copies.iter().enumerate() {
            // First to the next rank, so that at each time each GPU receives from one.
            let to = (rank + 1 + nth % others) % ranks;
            let turn = nth / (2 * others) + 1;
            assert_eq!((copy.area, copy.turn), (own[to], turn as u32), "{name}, {nth} of {rank}");
            let (bytes, fixed) = match kind(nth) {
                0 => (rows[to] * (2 * hidden + 4), None),
                _ => (rows[rank] * 2 * hidden, Some(first_row + (before * 2 * hidden) as u64)),
            };
            // Sums start at a multiple of 512 bytes after squares.
            assert!((bytes..bytes + 512).contains(&copy.bytes), "{name}, {nth} of {rank}");
            assert_eq!(copy.at, fixed.unwrap_or(copy.at), "{name}, {nth} of {rank}");
            // Always at the same offset, without overlap with another rank or kind.
            let end = copy.at + copy.bytes as u64;
            let place = (copy.at, (end, copy.mark));
            let kept = places[to].entry((kind(nth), rank)).or_insert(place);
            assert_eq!(*kept, place, "{name}, {nth} of {rank}");
        }
    }
    for places in &places {
        assert_eq!(places.len(), 2 * others);
        let marks = places.values().map(|(_, (_, mark))| *mark..*mark + 4);
        let data = places.values().map(|(at, (end, _))| *at..*end);
        let mut all: Vec<_> = marks.chain(data).collect();
        all.sort_by_key(|bytes| bytes.start);
        assert!(all.windows(2).all(|two| two[0].end <= two[1].start), "{name}: {all:?}");
    }
    assert_eq!(counts, [sums, sums * others, 0].map(|count| count as u64), "{name}");
}
