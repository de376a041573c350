"""Functions inside a model draw what follows from the key, and compute what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.learning.randomness import keyed_bits
from consilience.learning.rewriting import Rewriting

CPU = torch.device("cpu")
KEY = torch.tensor(7)
DTYPE = torch.float64


def dropout(
    probability: float = 0.5, *, channels: bool = False, layer: int = 1, key: int | torch.Tensor = 7
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a model's layer does whose draw is the so-manieth of a pass."""

    def apply(inputs: torch.Tensor) -> torch.Tensor:
        with Rewriting(torch.as_tensor(key)) as mode:
            mode.draws = layer - 1
            return (F.dropout3d if channels else F.dropout)(inputs, probability)

    return apply


@pytest.mark.parametrize("probability", [0.01, 0.25, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_expectation(probability):
    count = 200_000
    outputs = dropout(probability)(torch.ones(count // 100, 100))
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert (outputs == 0).double().mean().item() == pytest.approx(probability, abs=5 * deviation)
    assert outputs.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - probability))
    assert outputs.unique().tolist() == pytest.approx([0, 1 / (1 - probability)])


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**62 - 1])
def test_a_mask_is_a_function_of_key_layer_and_position(key):
    inputs = torch.ones(8, 50)
    mask = dropout(key=key)(inputs)
    assert torch.equal(dropout(key=key)(inputs), mask)
    assert torch.equal(dropout(key=key)(torch.ones(20, 50))[:8], mask)
    others = [dropout(key=key ^ 1), dropout(key=key ^ (1 << 40)), dropout(key=key, layer=2)]
    for other in others:
        agreement = (other(inputs) == mask).double().mean().item()
        assert agreement == pytest.approx(
            0.5, abs=0.125
        )  # 5 standard deviations: unrelated, not just different


def test_a_function_that_is_called_again_draws_again():
    inputs = torch.ones(8, 50)
    with Rewriting(torch.tensor(7)):
        masks = [F.dropout(inputs) for _ in range(3)]
    for one, other in combinations(masks, 2):
        assert (one == other).double().mean().item() == pytest.approx(0.5, abs=0.125)
    assert torch.equal(dropout(layer=2)(inputs), masks[1])


def test_dropout_reads_no_global_generator():
    state = torch.get_rng_state()
    first = dropout()(torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    assert torch.equal(dropout()(torch.ones(4, 4)), first)


def test_lanes_under_vmap_have_the_masks_they_have_alone():
    inputs, keys = torch.ones(3, 4, 5), torch.tensor([3, 2**40, 3])

    def one(key: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return dropout(key=key)(x)

    together = torch.func.vmap(one)(keys, inputs)
    assert torch.equal(together, torch.stack([one(*lane) for lane in zip(keys, inputs, strict=True)]))
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("shape", [(40, 30, 4), (40, 30, 4, 3), (40, 30, 2, 2, 2)])
def test_channel_dropout_drops_whole_channels(shape):
    dropped = (dropout(0.3, channels=True)(torch.ones(shape)) == 0).flatten(2)
    assert torch.equal(dropped.any(2), dropped.all(2))
    assert dropped.double().mean().item() == pytest.approx(0.3, abs=0.07)


@pytest.mark.parametrize(
    ("probability", "training", "factor"), [(0.5, False, 1), (0.0, True, 1), (1.0, True, 0)]
)
def test_dropout_without_chance(probability, training, factor):
    inputs = torch.randn(5, 6)
    with Rewriting(torch.tensor(7)):
        assert torch.equal(F.dropout(inputs, probability, training), factor * inputs)
        assert torch.equal(F.alpha_dropout(inputs, probability, training), factor * inputs)


STREAMS = {
    "positions": lambda: keyed_bits(torch.tensor(5), 1, (2**16,), CPU),
    "positions, large key": lambda: keyed_bits(torch.tensor(2**62 - 3), 3, (2**16,), CPU),
    "keys": lambda: torch.func.vmap(lambda key: keyed_bits(key, 1, (1,), CPU))(torch.arange(2**16)),
    "high keys": lambda: torch.func.vmap(lambda key: keyed_bits(key, 1, (1,), CPU))(
        torch.arange(2**16) << 31
    ),
    "layers": lambda: torch.cat([keyed_bits(torch.tensor(5), layer, (1,), CPU) for layer in range(2**13)]),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_keyed_bits_are_uniform_and_neighbours_unrelated(stream):
    bits = STREAMS[stream]().flatten()
    assert bits.dtype == torch.int32
    top = (bits >> 24) + 128
    neighbours = (top[0::2] >> 4) * 16 + (top[1::2] >> 4)
    for sample in (top, (bits >> 2) & 255, neighbours):
        assert stats.chisquare(torch.bincount(sample, minlength=256).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("rows", [3, 5, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_mask_of_a_row_of_a_sequence_knows_nothing_of_other_rows(axis, rows):
    whole = dropout()(torch.ones(8, 8, 6))
    part = torch.ones(8, 8, 6).narrow(axis, 0, rows)
    assert torch.equal(dropout()(part), whole.narrow(axis, 0, rows))
    agreement = (whole == whole.transpose(0, 1)).double().mean().item()
    assert agreement == pytest.approx(0.5, abs=0.15)  # those on the diagonal agree


def test_alpha_dropout_keeps_mean_and_variance():
    inputs = torch.randn(400, 500, generator=torch.Generator().manual_seed(0), dtype=DTYPE)
    with Rewriting(KEY):
        found = F.alpha_dropout(inputs, 0.3, training=True)
        channels = F.feature_alpha_dropout(inputs.reshape(400, 50, 10), 0.3, training=True)
    assert found.mean().item() == pytest.approx(0, abs=0.01)
    assert found.var().item() == pytest.approx(1, abs=0.02)
    dropped, plain = (one.flatten().mode().values for one in (found, nn.AlphaDropout(0.3)(inputs)))
    assert_close(dropped, plain, rtol=1e-7, atol=0)  # what takes the place of what is dropped
    assert (found == dropped).double().mean().item() == pytest.approx(0.3, abs=0.01)
    whole = channels == dropped
    assert torch.equal(whole.any(2), whole.all(2))


DRAWS = {
    "rand": (lambda x: torch.rand(40, 50), "uniform"),
    "rand of a size": (lambda x: torch.rand(size=(40, 50), dtype=DTYPE), "uniform"),
    "rand_like": (torch.rand_like, "uniform"),
    "randn": (lambda x: torch.randn((40, 50)), "norm"),
    "randn_like": (lambda x: torch.randn_like(x, dtype=DTYPE), "norm"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_their_distribution_and_follow_from_the_key(name):
    draw, law = DRAWS[name]
    state = torch.get_rng_state()
    with Rewriting(KEY):
        first, second = draw(torch.ones(40, 50)), draw(torch.ones(40, 50))
    with Rewriting(KEY):
        assert torch.equal(draw(torch.ones(40, 50)), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == (40, 50)
    assert not torch.equal(first, second)
    assert stats.kstest(first.flatten().numpy(), law).pvalue > 1e-4


def test_coins_fall_as_their_chances_say():
    with Rewriting(KEY):
        found = torch.bernoulli(torch.full((100, 100), 0.2))
    assert found.unique().tolist() == [0, 1]
    assert found.mean().item() == pytest.approx(0.2, abs=0.02)


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random, dtype=DTYPE) for shape in shapes]


@pytest.mark.parametrize("kind", ["plain", "causal", "boolean", "nobody", "floats", "scale", "groups"])
def test_attention_is_that_of_torch(kind):
    heads = 2 if kind == "groups" else 4
    query, key, value = tensors((3, 4, 5, 6), (3, heads, 7, 6), (3, heads, 7, 6))
    mask = torch.arange(35).reshape(5, 7) % 3 > 0
    nobody = mask & (torch.arange(5) != 2)[:, None]
    options = {
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": mask},
        "nobody": {"attn_mask": nobody},
        "floats": {"attn_mask": mask.to(DTYPE)},
        "scale": {"scale": 0.3},
        "groups": {"enable_gqa": True},
    }.get(kind, {})
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    with Rewriting(KEY):
        assert_close(F.scaled_dot_product_attention(query, key, value, **options), expected)


def test_attention_drops_shares_by_the_key():
    query, key, value = tensors((2, 3, 5, 6), (2, 3, 5, 6), (2, 3, 5, 6))

    def attend(key_of_batch: int, probability: float) -> torch.Tensor:
        with Rewriting(torch.tensor(key_of_batch)):
            return F.scaled_dot_product_attention(query, key, value, dropout_p=probability)

    assert torch.equal(attend(1, 0.5), attend(1, 0.5))
    assert not torch.equal(attend(1, 0.5), attend(2, 0.5))
    several = torch.stack([attend(one, 0.2) for one in range(2000)]).mean(0)
    assert_close(several, attend(1, 0.0), rtol=0, atol=0.12)


@pytest.mark.parametrize("weights", [False, True])
def test_heads_of_attention_see_no_global_generator(weights):
    layer = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True).to(DTYPE).train()
    (x,) = tensors((3, 5, 8))
    state = torch.get_rng_state()

    def attend(key: int) -> torch.Tensor:
        with Rewriting(torch.tensor(key)):
            return layer(x, x, x, need_weights=weights)[0]

    assert torch.equal(attend(1), attend(1))
    assert not torch.equal(attend(1), attend(2))
    assert torch.equal(torch.get_rng_state(), state)
    layer.eval()
    assert_close(attend(1), layer(x, x, x, need_weights=weights)[0])
