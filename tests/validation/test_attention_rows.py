import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_workloads import row

from trn_jax import latency, load_chip, trace
from trn_jax.validation import flash, functions
from trn_jax.validation.predict import Predictor
from trn_jax.validation.sizes import Missing
from trn_jax.validation.workloads import workload_of

Q, FULL = (8, 4096, 128), 4.0 * 8 * 4096**2 * 128  # operations of a forward pass without a mask


@pytest.mark.parametrize(
    "measurement",
    [
        row("flash attention forward", '{"batch": 1, "heads": 8, "sequence": 4096, "head_dim": 128}'),
        row("flash attention forward", '{"bs": 1, "nheads": 8, "seqlen": 4096, "d": 128, "causal": false}'),
        row("flash_fwd non-causal", "B=1 H=8 S=4k D=128"),
        row("flash attention forward", "B: 1, H: 8, S: 4096, D: 128, causal=False"),
        row("flash attention forward", "(2, 4, 4096, 128)"),
        row("flash attention forward", "1x8x128x4096"),  # depth before tokens
        row("flash attention forward", heads=8, seq_len=4096, hidden=1024),
        row("flash attention forward", batch=2, heads=4, seq_len=4096, head_dim=128, causal="no"),
    ],
    ids=lambda measurement: measurement.text("shape") or "columns",
)
def test_sizes_may_be_spelled_in_many_ways(measurement):
    workload = workload_of(measurement)
    assert (workload.name, workload.args[0].shape, workload.operations) == ("attention", Q, FULL)


@pytest.mark.parametrize(
    ("measurement", "name", "operations"),
    [
        (row("flash attention forward causal", "bs1 h8 seq4096 d128"), "causal_attention", FULL / 2),
        (row("flash attention", '{"B": 1, "H": 8, "S": 4096, "D": 128, "causal": true}'), "causal_attention", FULL / 2),
        (row("flash attention", "bs1 h8 seq4096 d128", is_causal=1), "causal_attention", FULL / 2),
        (row("flash attention backward", "bs1 h8 seq4096 d128"), "attention_backward", 2.5 * FULL),
        (row("flash_attn_bwd causal", "bs1 h8 seq4096 d128"), "causal_attention_backward", 1.25 * FULL),
        (row("flash attention fwd+bwd", "bs1 h8 seq4096 d128"), "attention_forward_backward", 3.5 * FULL),
        (row("gqa attention", '{"batch": 1, "heads": 8, "kv_heads": 2, "seq": 4096, "head_dim": 128}'), "attention", FULL),
        (row("attention", '{"heads": 8, "seqlen_q": 1, "seqlen_k": 4096, "head_dim": 128}'), "attention", FULL / 4096),
    ],
)
def test_masks_and_passes_are_told_apart(measurement, name, operations):
    workload = workload_of(measurement)
    assert (workload.name, workload.operations) == (name, operations)
    jax.eval_shape(workload.function, *workload.args)


@pytest.mark.parametrize(
    ("measurement", "missing"),
    [
        (row("flash attention forward", '{"batch": 1, "heads": 8, "sequence": 4096}'), "the size head_dim"),
        (row("flash attention forward", '{"batch": 1, "heads": 8, "head_dim": 64}'), "the size seq_len"),
        (row("flash attention forward", '{"heads": 5, "kv_heads": 2, "seq": 64, "head_dim": 64}'), "5 heads over 2 of keys"),
        (
            row("causal attention", '{"heads": 5, "seqlen_q": 64, "seqlen_k": 32, "head_dim": 64}'),
            "a causal mask over 64 queries and 32 keys",
        ),
        (row("flash attention forward", "(1, 8, 0, 64)"), "has a size of 0"),
        (row("flash attention forward"), "the size head_dim"),
    ],
)
def test_what_is_missing_is_named(measurement, missing):
    with pytest.raises(Missing, match=missing):
        workload_of(measurement)


def _blockwise(q, k, v, parts):
    """[kv heads, heads of each, S, D] attention in which a query sees the parts of keys up to its own, and its logsumexp."""
    scores = jnp.einsum("hgsd,htd->hgst", q, k) / np.sqrt(q.shape[-1])
    part_of = jnp.arange(k.shape[1]) // (k.shape[1] // parts)
    scores = jnp.where(part_of[None, :] <= part_of[-q.shape[2] :, None], scores, -jnp.inf)
    out = jnp.einsum("hgst,htd->hgsd", jax.nn.softmax(scores, -1), v)
    return out, jax.nn.logsumexp(scores, -1, keepdims=True)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("keys", [64, 96])
def test_the_backward_pass_is_the_derivative(parts, keys, monkeypatch):
    monkeypatch.setattr(flash, "BLOCK", 16)
    rng = np.random.default_rng(0)
    q, out_bar = (jnp.asarray(rng.normal(size=(2, 2, 64, 8)), jnp.float32) for _ in range(2))
    k, v = (jnp.asarray(rng.normal(size=(2, keys, 8)), jnp.float32) for _ in range(2))
    parts = parts if parts == 1 else keys // 16
    (out, lse), pull_back = jax.vjp(lambda *args: _blockwise(*args, parts), q, k, v)
    flat = [x.reshape(4, 64, -1) for x in (q, out_bar, out, lse)]
    q_bars, k_bars, v_bars = flash.attention_backward(flat[0], k, v, *flat[1:], parts=parts)
    expected = pull_back((out_bar, jnp.zeros_like(lse)))
    found = [jnp.concatenate(q_bars, -2), *(jnp.concatenate([bar.reshape(2, -1, 8) for bar in bars], 1) for bars in (k_bars, v_bars))]
    for bar, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(bar, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_causal_parts_are_those_of_the_queries():
    q, k = jnp.ones((2, 6, 4)), jnp.ones((2, 10, 4))
    assert [out.shape[2] for out in functions.causal_attention(q, k, k)] == [1] * 6
    out = functions.causal_attention(jnp.ones((2, 16, 4)), jnp.ones((2, 16, 4)), jnp.arange(16.0)[None, :, None] * jnp.ones((2, 16, 4)))
    np.testing.assert_allclose([float(part[0, 0, -1, 0]) for part in out], [0.5 + i for i in range(8)])  # mean of the keys seen


def test_predictions_are_sensible():
    predictor, sizes = Predictor(), "bs1 h2 seq2048 d128"
    names = ("flash attention forward", "flash attention forward causal", "flash attention backward")
    found = {name: predictor.predict(row(name, sizes, dtype="bf16")) for name in names}
    forward, causal, backward = (found[name].latency_s for name in names)
    assert 0.5 < causal / forward < 0.75
    assert 1 < backward / forward < 3
    assert predictor.predict(row(names[0], sizes)).latency_s > 1.5 * forward  # fp32 products take four passes
    assert all(prediction.bound_s < prediction.latency_s for prediction in found.values())
    program, chip = predictor.program(found[names[2]].workload), load_chip("trainium1")
    assert float(program.flops) == pytest.approx(2.5 * 4 * 2 * 2048**2 * 128)
    assert float(program.compulsory_bytes) < 1.2 * found[names[2]].workload.argument_bytes * 8 / 5  # blocks of scores stay on chip
    assert float(latency(trace(functions.attention, *found[names[0]].workload.args), chip)) == pytest.approx(forward)
