"""Mixer functions with the signatures of transformers' modeling files, implemented by firstlight's ops."""

from . import ops
from .compat import mamba_ssm
from .compat._sequences import flat


def gated_delta_rule(
    query,
    key,
    value,
    g,
    beta,
    chunk_size=64,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
):
    """The gated delta rule, chunked or recurrent: q and k ``[B, T, H, K]``, v ``[B, T, HV, V]``, g and beta ``[B, T, HV]``, states
    ``[B, HV, K, V]``. Returns the output, and the final state in float32 or None."""
    g = g.to(query.dtype) if g.dtype != query.dtype and g.dtype.itemsize < 4 else g
    shape = value.shape
    found = ops.gated_delta(
        *flat(cu_seqlens, query, key, value, g, beta),
        l2norm=use_qk_l2norm_in_kernel,
        initial_state=None if initial_state is None else initial_state.float(),
        return_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )
    o, state = found if output_final_state else (found, None)
    return o.view(shape), state


def selective_scan(
    hidden_states,
    dt,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus=False,
    return_last_state=False,
    use_mambapy=False,
    use_associative_scan=False,
):
    """Mamba's selective scan, with the arguments of ``selective_scan_fn``. The last two select an implementation and are ignored."""
    return mamba_ssm.selective_scan_fn(
        hidden_states,
        dt,
        A,
        B,
        C,
        D=D,
        z=z,
        delta_bias=delta_bias,
        delta_softplus=delta_softplus,
        return_last_state=return_last_state,
    )


def selective_state_update(state, hidden_states, dt, A, B, C, D=None, dt_bias=None, dt_softplus=False, z=None):
    """One step of Mamba's selective scan; ``state`` is updated in place."""
    return mamba_ssm.selective_state_update(state, hidden_states, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus)
