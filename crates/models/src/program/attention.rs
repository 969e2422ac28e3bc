use super::{
    Append, Attend, Backend, CacheId, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm,
    Rotation, Values,
};
use crate::ModelError;
use crate::layers::Attention;
use ops::Tensor;
use ops::linear::Norm;
use ops::rmsnorm::Activation;

/// Grouped-query attention over a paged cache.
pub(super) struct GroupedAttention<B: Backend> {
    of: Attention,
    qkv: B::Projection,
    /// Norms of queries and keys, per head or over all heads.
    norms: Option<[RmsNorm; 2]>,
    /// The norm of values per head, without weights.
    value_norm: Option<RmsNorm>,
    rotation: Option<Rotation>,
    /// `[heads]`.
    sinks: Option<Tensor>,
    cache: CacheId,
    out: B::Projection,
}

impl<B: Backend> GroupedAttention<B> {
    pub(super) fn new(of: &Attention, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let kv = [of.kv_heads, of.head_dim];
        let norms = match of.norms {
            Some([q, k]) if of.norms_span_heads => Some([load.norm(q, 1)?, load.norm(k, 1)?]),
            Some([q, k]) => Some([load.norm(q, of.heads)?, load.norm(k, of.kv_heads)?]),
            None => None,
        };
        let ones = || load.transfer(Tensor::new(&[of.head_dim], vec![1f32; of.head_dim]));
        let norm = Norm { groups: of.kv_heads, eps: load.architecture().eps };
        let value_norm = of.value_norm.then(ones).transpose()?;
        let value_norm = value_norm.map(|weight| RmsNorm { weight, norm, ranks: 1 });
        Ok(Self {
            qkv: load.projection(&of.qkv)?,
            value_norm,
            norms,
            sinks: of.sinks.map(|sinks| load.vector(sinks)).transpose()?,
            rotation: of.rope.as_ref().map(|rope| load.rotation(rope)).transpose()?,
            cache: load.cache(kv, Values::Separate(kv))?,
            out: load.projection(&of.out)?,
            of: of.clone(),
        })
    }
}

impl<B: Backend> LayerMixer<B> for GroupedAttention<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let Attention { heads, kv_heads, head_dim: dim, scale, window, softcap, .. } = self.of;
        let kv = [kv_heads, dim];
        let [on_input, on_output] = self.of.multipliers;
        let x = x.times(on_input);
        let queries: &[usize] = &[heads, dim];
        let (mut q, gate, mut k, mut v) = if self.of.values_are_keys {
            let [q, k] = run.project(&self.qkv, x, [queries, &kv])?;
            (q, None, k.clone(), k)
        } else if self.of.gated {
            let [q, gate, k, v] = run.project(&self.qkv, x, [queries, queries, &kv, &kv])?;
            (q, Some(gate), k, v)
        } else {
            let [q, k, v] = run.project(&self.qkv, x, [queries, &kv, &kv])?;
            (q, None, k, v)
        };
        if let Some([of_queries, of_keys]) = &self.norms {
            q = run.norm(Input::normed(&q, of_queries))?;
            k = run.norm(Input::normed(&k, of_keys))?;
        }
        if let Some(norm) = &self.value_norm {
            v = run.norm(Input::normed(&v, norm))?;
        }
        let rotated = self.rotation.as_ref().map(|rotation| (&mut q, rotation));
        let new = Append { keys: &mut k, more: None, values: Some(&v), rotated };
        run.append(self.cache, new)?;
        let (new, sinks) = (Some([&k, &v]), self.sinks.as_ref());
        let call = Attend { queries: &q, new, scale, window, softcap, sinks };
        let o = run.attend(self.cache, call)?;
        let gate = gate.as_ref().map(|gate| (gate, Activation::Sigmoid));
        Ok(run.add(&self.out, Input { gate, ..Input::rows(&o) }.times(on_output))?)
    }
}
