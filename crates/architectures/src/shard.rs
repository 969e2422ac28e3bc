//! Tensor parallelism: the part of each parameter that a rank has, and the layers made of it.
//!
//! A rank's [`Architecture`] has the same layers with fewer heads, channels and experts. Its parameters have the whole
//! model's names and a [`TensorSlice`] that selects their rows and columns. Each rank's addition to the residual stream is one
//! part of an all-reduce.

mod cutter;
mod narrow;

use crate::layers::{
    Attention, ClampedExperts, Experts, GatedDelta, GatedDeltaShape, GatedMlp, Kda,
    LatentAttention, LatentShape, Mamba1, Mamba1Shape, Mamba2, Mamba2Shape, ShortConv,
};
use crate::params::Projection;
use crate::{Architecture, Layer, Mixer, NormPosition};
pub(crate) use cutter::Cutter;
use std::ops::Range;

/// A rank and the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRank {
    /// From 0.
    pub rank: usize,
    /// Number of ranks; 1 for a whole model.
    pub ranks: usize,
}

impl ShardRank {
    /// The one rank of a whole model.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// This rank's part of `of` items, as even as possible.
    pub fn part(self, of: usize) -> Range<usize> {
        let before = |rank: usize| rank * of / self.ranks;
        before(self.rank)..before(self.rank + 1)
    }

    /// This rank's part of `of` items, of which every rank has equally many.
    fn even(self, of: usize, what: &str) -> Result<Range<usize>, String> {
        match of.is_multiple_of(self.ranks) {
            true => Ok(self.part(of)),
            false => Err(format!("{of} {what} do not split evenly over {} ranks", self.ranks)),
        }
    }

    /// [`Self::even`], or for fewer items than ranks the one item that this rank shares with others.
    fn even_or_one(self, of: usize, what: &str) -> Result<Range<usize>, String> {
        let one = self.rank * of / self.ranks;
        match self.ranks.is_multiple_of(of) {
            true => Ok(one..one + 1),
            false => self.even(of, what),
        }
    }
}

/// A model that cannot be split over this number of ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the model cannot be split: {what}")]
pub struct SplitError {
    /// The reason.
    pub what: String,
    /// Supported numbers of ranks.
    pub hint: String,
}

/// The result of a split, or an error that lists the supported numbers of ranks.
pub(crate) fn hint_ranks<T>(
    option: &str,
    place: ShardRank,
    split: impl Fn(ShardRank) -> Result<T, String>,
) -> Result<T, SplitError> {
    split(place).map_err(|what| {
        let can = |ranks: &usize| split(ShardRank { rank: 0, ranks: *ranks }).is_ok();
        let can: Vec<String> = USUAL.iter().filter(|n| can(n)).map(usize::to_string).collect();
        let hint = match can.is_empty() {
            true => format!("leave {option} out"),
            false => format!("use {option} {}", can.join(" or ")),
        };
        SplitError { what, hint }
    })
}

/// Numbers of ranks that a hint considers: those of one host.
const USUAL: [usize; 4] = [2, 4, 8, 16];

impl Architecture {
    /// One rank's part of a whole model.
    ///
    /// Heads of mixers, channels of feed-forward parts and rows of the head are divided evenly; an expert is on one
    /// rank. Every rank has what all heads read: norms, routers, the embedding, step sizes' low rank, B and C of Mamba,
    /// B and C of Mamba-2 if several ranks have heads of a group, the latent vectors of latent attention and their
    /// cache, and projections around experts on a narrower vector.
    ///
    /// # Errors
    /// [`SplitError`] naming what cannot be split, or a weight whose quantization groups would be cut.
    pub fn shard(&self, place: ShardRank) -> Result<Self, SplitError> {
        hint_ranks("--tp", place, |place| self.part(place))
    }

    fn part(&self, place: ShardRank) -> Result<Self, String> {
        if place.ranks == 1 {
            return Ok(self.clone());
        }
        let mut whole = self.clone();
        let mut cutter = Cutter::new(std::mem::take(&mut whole.params));
        for layer in &mut whole.layers {
            split(layer, place, &mut cutter)?;
        }
        // A tied head gets separate rows: the embedding stays whole.
        if self.is_tied() {
            let again = cutter.params.again(self.embedding);
            whole.head.rows.iter_mut().for_each(|rows| rows.param = again);
        }
        whole.head = cutter.outputs(&whole.head, &[place.part(self.head.outputs())]);
        let head = whole.head.rows.iter_mut();
        cutter.end(whole.layers.iter_mut().flat_map(rows_of).chain(head));
        cutter.params.iter().try_for_each(narrow::hold)?;
        Ok(Self { place, params: cutter.params, ..whole })
    }

    /// Index of the first vocabulary entry for which this rank's head computes logits.
    pub fn first_of_head(&self) -> usize {
        self.place.part(self.vocabulary).start
    }
}

/// Every stack of rows in a layer.
fn rows_of(layer: &mut Layer) -> Vec<&mut crate::params::RowRange> {
    fn of_mamba2(of: &mut Mamba2) -> impl Iterator<Item = &mut Projection> {
        [&mut of.in_proj, &mut of.out_proj].into_iter().chain(&mut of.dt_proj)
    }
    let (projections, heads): (Vec<_>, Vec<_>) = match &mut layer.mixer {
        Mixer::Mamba2(of) => (of_mamba2(of).collect(), Vec::new()),
        Mixer::Attention(of) => (vec![&mut of.qkv, &mut of.out], Vec::new()),
        Mixer::Parallel(of) => {
            let attention = [&mut of.attention.qkv, &mut of.attention.out];
            (of_mamba2(&mut of.mamba).chain(attention).collect(), Vec::new())
        }
        Mixer::GatedDelta(of) => (vec![&mut of.project, &mut of.out], Vec::new()),
        Mixer::ShortConv(of) => (vec![&mut of.in_proj, &mut of.out_proj], Vec::new()),
        Mixer::Kda(of) => {
            (vec![&mut of.project, &mut of.decay, &mut of.gate, &mut of.out], Vec::new())
        }
        Mixer::Latent(of) => (
            {
                let up = of.query_up.iter_mut().map(|(_, up)| up);
                [&mut of.project, &mut of.out].into_iter().chain(up).collect()
            },
            of.key_up.iter_mut().chain(&mut of.value_up).collect(),
        ),
        Mixer::Mamba1(of) => {
            let all = [&mut of.in_proj, &mut of.x_proj, &mut of.dt_proj, &mut of.out_proj];
            (all.into(), Vec::new())
        }
        Mixer::None => (Vec::new(), Vec::new()),
    };
    let experts = layer.experts.iter_mut().flat_map(|experts| &mut experts.experts);
    let gated = experts.chain(&mut layer.mlp).flat_map(|of| [&mut of.gate_up, &mut of.down]);
    let all = projections.into_iter().chain(gated).flat_map(|of| &mut of.rows);
    all.chain(heads).collect()
}

fn split(layer: &mut Layer, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    if layer.norm_position != NormPosition::Pre {
        return Err("norms follow the parts of a layer".to_owned());
    }
    match &mut layer.mixer {
        Mixer::Mamba1(of) => mamba1(of, place, cutter)?,
        Mixer::Mamba2(of) => mamba2(of, place, true, cutter)?,
        Mixer::Attention(of) => attention(of, place, cutter)?,
        Mixer::Kda(of) => kda(of, place, cutter)?,
        Mixer::Latent(of) => latent(of, place, cutter)?,
        Mixer::GatedDelta(of) => gated_delta(of, place, cutter)?,
        Mixer::ShortConv(of) => short_conv(of, place, cutter)?,
        Mixer::Parallel(of) => {
            mamba2(&mut of.mamba, place, false, cutter)?;
            attention(&mut of.attention, place, cutter)?;
        }
        Mixer::None => {}
    }
    if let Some(of) = &mut layer.experts {
        experts(of, place, cutter)?;
    }
    layer.mlp.as_mut().map_or(Ok(()), |of| mlp(of, place, cutter))
}

/// A range scaled by `width` and shifted by `from`.
fn wide(range: &Range<usize>, width: usize, from: usize) -> Range<usize> {
    from + range.start * width..from + range.end * width
}

/// Splits channels. The projection to the step sizes' low rank, B and C is all-reduced and available on every rank,
/// with its norms.
fn mamba1(of: &mut Mamba1, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let shape @ Mamba1Shape { inner, state, taps, .. } = of.shape;
    let own = place.even(inner, "channels of Mamba")?;
    let alone = std::slice::from_ref(&own);
    of.in_proj = cutter.outputs(&of.in_proj, &[0, inner].map(|from| wide(&own, 1, from)));
    cutter.values(of.conv_weight, taps, alone);
    cutter.values(of.a_log, state, alone);
    for by_channel in [of.dt_bias, of.d].into_iter().chain(of.conv_bias) {
        cutter.values(by_channel, 1, alone);
    }
    of.x_proj = cutter.inputs(&of.x_proj, own.clone(), place);
    of.dt_proj = cutter.outputs(&of.dt_proj, alone);
    of.shape = Mamba1Shape { inner: own.len(), ..shape };
    of.out_proj = cutter.inputs(&of.out_proj, own, place);
    Ok(())
}

/// Splits heads with everything that belongs to them. Each group follows its heads; with fewer groups than ranks,
/// several ranks have the same B and C. Norms are per group, except for one over all channels, which needs every rank's
/// squares: the following all-reduce completes it, if it sums nothing else.
fn mamba2(
    of: &mut Mamba2,
    place: ShardRank,
    alone: bool,
    cutter: &mut Cutter,
) -> Result<(), String> {
    let shape @ Mamba2Shape { heads, head_dim, groups, state, taps, .. } = of.shape;
    let own = place.even(heads, "heads of Mamba-2")?;
    let own_groups = match of.norm.is_some() && groups > 1 {
        true => place.even(groups, "groups of Mamba-2")?,
        false => place.even_or_one(groups, "groups of Mamba-2")?,
    };
    let spread = groups == 1 && of.norm.is_some();
    let others = [(!of.out_proj.bias.is_empty(), "before a bias"), (!alone, "next to attention")];
    if let Some((_, what)) = others.into_iter().find(|(others, _)| spread && *others) {
        return Err(format!("Mamba-2's norm over all ranks is {what}"));
    }
    let (inner, width) = (shape.inner(), groups * state);
    let channels = wide(&own, head_dim, 0);
    let [b, c] = [inner, inner + width].map(|from| wide(&own_groups, state, from));
    let convolved = [channels.clone(), b, c];
    let mut made = vec![channels.clone()];
    made.extend(convolved.iter().map(|range| inner + range.start..inner + range.end));
    match &mut of.dt_proj {
        Some(dt) => *dt = cutter.outputs(dt, std::slice::from_ref(&own)),
        None => made.push(wide(&own, 1, inner + shape.channels())),
    }
    of.in_proj = cutter.outputs(&of.in_proj, &made);
    cutter.values(of.conv_weight, taps, &convolved);
    if let Some(bias) = of.conv_bias {
        cutter.values(bias, 1, &convolved);
    }
    for by_head in [of.a_log, of.d, of.dt_bias] {
        cutter.values(by_head, 1, std::slice::from_ref(&own));
    }
    if let Some(norm) = of.norm {
        cutter.values(norm, 1, std::slice::from_ref(&channels));
    }
    of.out_proj = cutter.inputs(&of.out_proj, channels, place);
    of.norm_ranks = if spread { place.ranks } else { 1 };
    of.shape = Mamba2Shape { heads: own.len(), groups: own_groups.len(), ..shape };
    Ok(())
}

/// Splits query heads, and keys and values with them; with fewer key heads than ranks, several ranks have the same.
fn attention(of: &mut Attention, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let Attention { heads, kv_heads, head_dim, gated, .. } = *of;
    if of.norms_span_heads {
        return Err("attention's norms are over all heads".to_owned());
    }
    let own = place.even(heads, "heads of attention")?;
    let own_kv = place.even_or_one(kv_heads, "key heads of attention")?;
    let queries = heads * head_dim;
    let keys = if gated { 2 * queries } else { queries };
    let mut made = vec![wide(&own, head_dim, 0)];
    made.extend(gated.then(|| wide(&own, head_dim, queries)));
    made.extend([keys, keys + kv_heads * head_dim].map(|from| wide(&own_kv, head_dim, from)));
    of.qkv = cutter.outputs(&of.qkv, &made);
    of.out = cutter.inputs(&of.out, wide(&own, head_dim, 0), place);
    if let Some(sinks) = of.sinks {
        cutter.values(sinks, 1, std::slice::from_ref(&own));
    }
    (of.heads, of.kv_heads) = (own.len(), own_kv.len());
    Ok(())
}

/// Splits heads; the low-rank vectors of both gates are on every rank.
fn kda(of: &mut Kda, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let Kda { heads, head_dim, taps, .. } = *of;
    let own = place.even(heads, "heads of KDA")?;
    let width = heads * head_dim;
    let channels = wide(&own, head_dim, 0);
    let mut made: Vec<_> = (0..3).map(|part| wide(&own, head_dim, part * width)).collect();
    made.push(3 * width..3 * width + 2 * head_dim);
    made.push(wide(&own, 1, 3 * width + 2 * head_dim));
    of.project = cutter.outputs(&of.project, &made);
    let channels_alone = std::slice::from_ref(&channels);
    for projection in [&mut of.decay, &mut of.gate] {
        *projection = cutter.outputs(projection, channels_alone);
    }
    of.conv_weights.iter().for_each(|conv| cutter.values(*conv, taps, channels_alone));
    cutter.values(of.a_log, 1, std::slice::from_ref(&own));
    cutter.values(of.dt_bias, 1, channels_alone);
    of.out = cutter.inputs(&of.out, channels, place);
    of.heads = own.len();
    Ok(())
}

/// Splits key heads with their value heads.
fn gated_delta(of: &mut GatedDelta, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let shape @ GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, taps, .. } = of.shape;
    let own_keys = place.even(key_heads, "key heads of a gated delta net")?;
    let own = wide(&own_keys, value_heads / key_heads, 0);
    let (keys, values) = (key_heads * key_dim, shape.values());
    let by_key = [0, keys].map(|from| wide(&own_keys, key_dim, from));
    let by_value = [2 * keys, 2 * keys + values].map(|from| wide(&own, value_dim, from));
    let by_head = [0, value_heads].map(|from| wide(&own, 1, 2 * (keys + values) + from));
    let [convolved, _] = &by_value;
    let convolved = [&by_key[..], std::slice::from_ref(convolved)].concat();
    of.project = cutter.outputs(&of.project, &[&by_key[..], &by_value, &by_head].concat());
    match of.conv_weights[..] {
        [all] => cutter.values(all, taps, &convolved),
        _ => {
            let own = [&by_key[0], &by_key[0], &wide(&own, value_dim, 0)];
            let parts = of.conv_weights.iter().zip(own);
            parts.for_each(|(conv, own)| cutter.values(*conv, taps, std::slice::from_ref(own)));
        }
    }
    for by_head in [of.a_log, of.dt_bias] {
        cutter.values(by_head, 1, std::slice::from_ref(&own));
    }
    of.out = cutter.inputs(&of.out, wide(&own, value_dim, 0), place);
    of.shape = GatedDeltaShape { key_heads: own_keys.len(), value_heads: own.len(), ..shape };
    Ok(())
}

/// Splits the channels of B, C and x.
fn short_conv(of: &mut ShortConv, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let ShortConv { channels, taps, .. } = *of;
    let own = place.even(channels, "channels of a short convolution")?;
    let parts = [0, channels, 2 * channels].map(|from| wide(&own, 1, from));
    of.in_proj = cutter.outputs(&of.in_proj, &parts);
    cutter.values(of.conv_weight, taps, std::slice::from_ref(&own));
    if let Some(bias) = of.conv_bias {
        cutter.values(bias, 1, std::slice::from_ref(&own));
    }
    of.channels = own.len();
    of.out_proj = cutter.inputs(&of.out_proj, own, place);
    Ok(())
}

/// Splits heads; latent vectors, the shared part of keys and their cache are on every rank.
fn latent(of: &mut LatentAttention, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let shape @ LatentShape { heads, nope, shared, value, .. } = of.shape;
    let own = place.even(heads, "heads of latent attention")?;
    let queries = heads * (nope + shared);
    let own_queries = wide(&own, nope + shared, 0);
    match &mut of.query_up {
        Some((_, up)) => *up = cutter.outputs(up, std::slice::from_ref(&own_queries)),
        None => {
            let made = [own_queries, queries..of.project.outputs()];
            of.project = cutter.outputs(&of.project, &made);
        }
    }
    for up in [&mut of.key_up, &mut of.value_up] {
        *up = up[own.clone()].to_vec();
        up.iter().for_each(|rows| cutter.keep(rows));
    }
    of.out = cutter.inputs(&of.out, wide(&own, value, 0), place);
    of.shape = LatentShape { heads: own.len(), ..shape };
    Ok(())
}

/// Splits experts. Each rank projects its experts' sum of a narrower vector back to the residual stream, as its part of
/// the all-reduce.
fn experts(of: &mut Experts, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let own = place.even(of.experts.len(), "experts")?;
    for (index, expert) in of.experts.iter().enumerate() {
        for rows in [&expert.gate_up, &expert.down].into_iter().flat_map(|of| &of.rows) {
            match own.contains(&index) {
                true => cutter.keep(rows),
                false => cutter.drop_param(rows.param),
            }
        }
    }
    if let Some(ClampedExperts { gate_up_bias, down_bias, .. }) = of.clamped {
        for bias in [gate_up_bias, down_bias] {
            let width = cutter.params.get(bias).sides()[1];
            cutter.values(bias, width, std::slice::from_ref(&own));
        }
    }
    of.first = own.start;
    of.experts = of.experts.drain(own).collect();
    Ok(())
}

fn mlp(of: &mut GatedMlp, place: ShardRank, cutter: &mut Cutter) -> Result<(), String> {
    let inner = of.down.inputs;
    let own = place.even(inner, "channels of a feed-forward part")?;
    let mut made = vec![own.clone()];
    made.extend(of.gated.then(|| wide(&own, 1, inner)));
    of.gate_up = cutter.outputs(&of.gate_up, &made);
    of.down = cutter.inputs(&of.down, own, place);
    Ok(())
}

#[cfg(test)]
mod tests;
