use super::{Append, Attend, Backend, CacheId, Executor, Input, Loader, Mix, Values};
use crate::ModelError;
use crate::layers::Attention;
use kernels::OpError;

/// Grouped-query attention over a paged cache.
pub(super) struct GroupedAttention<B: Backend> {
    of: Attention,
    qkv: B::Projection,
    cache: CacheId,
    out: B::Projection,
}

impl<B: Backend> GroupedAttention<B> {
    pub(super) fn new(of: &Attention, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let kv = [of.kv_heads, of.head_dim];
        Ok(Self {
            qkv: load.projection(&of.qkv)?,
            cache: load.cache(kv, Values::Apart(kv))?,
            out: load.projection(&of.out)?,
            of: of.clone(),
        })
    }
}

impl<B: Backend> Mix<B> for GroupedAttention<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let Attention { heads, kv_heads, head_dim: dim, scale, rope_theta, .. } = self.of;
        let kv = [kv_heads, dim];
        let parts: [&[usize]; _] = [&[heads, dim], &kv, &kv];
        let [mut q, mut k, v] = run.project(&self.qkv, x, parts)?;
        let rotated = rope_theta.map(|theta| (&mut q, theta));
        let new = Append { keys: &mut k, more: None, values: Some(&v), rotated };
        run.append(self.cache, new)?;
        let call = Attend { queries: &q, new: Some([&k, &v]), scale };
        let o = run.attend(self.cache, call)?;
        run.add(&self.out, Input::rows(&o))
    }
}
