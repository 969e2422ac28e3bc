use super::{NsaProblem, Pooling};
use crate::{DType, OutputSpec, Problem};

impl Problem for NsaProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("B", self.queries.count() as u64),
            ("Tq", self.queries.longest() as u64),
            ("Tk", self.keys.longest() as u64),
            ("HQ", self.heads as u64),
            ("Hkv", self.kv_heads as u64),
            ("D", self.head_dim as u64),
            ("Dv", self.value_dim as u64),
        ]
    }

    /// `2 (D + Dv)` per query head and token read (`2 D` for compressed tokens that only select), plus the pooling:
    /// `l` additions per element, or a product with the learned matrix.
    fn flops(&self) -> f64 {
        let (d, dv) = (self.head_dim as f64, self.value_dim as f64);
        let both = 2.0 * (d + dv);
        let mut compressed = 0.0;
        let mut window = 0.0;
        for (_, t) in self.positions().filter(|(_, t)| *t >= 0) {
            compressed += self.compressed_tokens(t as usize + 1) as f64;
            window += (self.window as f64).min(t as f64 + 1.0);
        }
        let mut flops = self.selected_tokens as f64 * self.group() as f64 * both;
        if self.branches.window {
            flops += window * self.heads as f64 * both;
        }
        let blocks: usize = self.keys.iter().map(|keys| self.compressed_tokens(keys.len())).sum();
        let pooled = (blocks * self.kv_heads * self.compress_block) as f64;
        for (size, needed) in [(d, self.scores_compressed()), (dv, self.branches.compressed)] {
            if needed {
                flops += 2.0 * size * compressed * self.heads as f64;
                flops += match self.pooling {
                    _ if self.given_compressed.is_some() => 0.0,
                    Pooling::Mean => pooled * size,
                    Pooling::Learned => 2.0 * pooled * size * size,
                };
            }
        }
        flops
    }

    fn bytes(&self) -> f64 {
        let (queries, keys) = (self.queries.total() as f64, self.keys.total() as f64);
        let (d, dv) = (self.head_dim as f64, self.value_dim as f64);
        let gates = [self.branches.compressed, self.branches.selected, self.branches.window];
        let gates = gates.into_iter().filter(|gate| *gate).count() as f64;
        let kv_heads = self.kv_heads as f64;
        let mut read = keys * kv_heads;
        let mut given_tokens = 0.0;
        if self.given_compressed.is_some() {
            // Only selected tokens and those in a window are read, each at most once.
            let window = |(_, t): (usize, i64)| (self.window as f64).min((t + 1).max(0) as f64);
            let window =
                if self.branches.window { self.positions().map(window).sum() } else { 0.0 };
            read = read.min(self.selected_tokens as f64 + window * kv_heads);
            let blocks = self.keys.iter().map(|keys| self.compressed_tokens(keys.len()));
            given_tokens = blocks.sum::<usize>() as f64 * kv_heads;
        }
        let compressed = given_tokens * (d + if self.branches.compressed { dv } else { 0.0 });
        let stored = queries * self.heads as f64 * (d + dv + gates) + read * (d + dv) + compressed;
        let given = if self.given_blocks { self.select_count } else { 0 };
        let integers = queries * (self.kv_heads * (self.select_count + 3 + given)) as f64;
        let learned = match self.pooling {
            Pooling::Mean => 0.0,
            Pooling::Learned if self.given_compressed.is_some() => 0.0,
            Pooling::Learned => (self.kv_heads * self.compress_block) as f64 * (d * d + dv * dv),
        };
        (stored + learned) * self.dtype.bytes() as f64 + integers * DType::I32.bytes() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let output = |name, rest: [usize; 2], dtype| OutputSpec {
            name,
            shape: self.queries.shape(&rest),
            dtype,
        };
        vec![
            output("o", [self.heads, self.value_dim], self.dtype),
            output("indices", [self.kv_heads, self.select_count], DType::I32),
            output("reads", [self.kv_heads, 3], DType::I32),
        ]
    }
}
