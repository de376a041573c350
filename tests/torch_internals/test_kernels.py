"""Kernels and settings that torch does not document, beside those that it does."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience import torch_internals as internals


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_the_fused_step_is_torchs_sgd(momentum, nesterov, decay, device, same):
    images = torch.randn(5, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    shapes = [torch.randn(()), torch.randn(7), torch.randn(1, 13), torch.randn(300, 11), images]
    params = [value.double().to(device) for value in shapes]
    public = [nn.Parameter(value.clone()) for value in params]
    velocity = [torch.zeros_like(value) for value in params] if momentum else []
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": decay, "nesterov": nesterov}
    solver = torch.optim.SGD(public, **options, fused=False, foreach=False)
    for _ in range(3):
        for parameter in public:
            parameter.grad = torch.randn_like(parameter)
        internals.fused_sgd(
            params,
            [parameter.grad for parameter in public],
            velocity,
            **options,
            dampening=0.0,
            maximize=False,
            is_first_step=False,
        )
        solver.step()
    for value, parameter in zip(params, public, strict=True):
        same(value, parameter.detach(), f"_fused_sgd_ is not torch.optim.SGD for {tuple(value.shape)}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_copying_all_is_copying_each(dtype, device, same):
    sources = [(3 * torch.randn(5, 4, device=device)).to(dtype)[1:, ::2], torch.zeros(7).to(device, dtype)]
    places = [torch.ones(2, 4, device=device).to(dtype).T, torch.ones(9).to(device, dtype)[1:8]]
    internals.copy_all(places, sources)
    for place, source in zip(places, sources, strict=True):
        same(place, source, "_foreach_copy_ does not copy", rtol=0, atol=0)


def test_sums_of_all_are_sums_of_each(device, same):
    shapes = ((3, 4), (), (5,), (0,), (1000,))
    places, others = ([torch.randn(s, device=device, dtype=torch.float64) for s in shapes] for _ in range(2))
    wanted = [place + other * 0.3 for place, other in zip(places, others, strict=True)]
    internals.scale_all(others, 0.3)
    internals.add_all(places, others)
    for place, value in zip(places, wanted, strict=True):
        same(place, value, "_foreach_mul_ or _foreach_add_ rounds in another way", rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_a_normalised_batch_comes_with_its_statistics(dtype, tolerance, device, same):
    x = (3 + 2 * torch.randn(6, 3, 4, 5, device=device)).to(dtype)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    weight, bias = torch.randn(2, 3, device=device, dtype=exact)
    before = torch.randn(3, device=device).to(exact), torch.rand(3, device=device).to(exact)
    found, *after = internals.batch_normalised(x, weight, bias, *before, 0.3, 1e-3)
    wanted_after = [value.clone() for value in before]
    wanted = F.batch_norm(x.to(exact), *wanted_after, weight, bias, training=True, momentum=0.3, eps=1e-3)
    changed = "_native_batch_norm_legit_functional"
    same(found, wanted.to(dtype), f"{changed} is not F.batch_norm", rtol=tolerance, atol=tolerance)
    near = {"rtol": min(tolerance, 1e-4), "atol": min(tolerance, 1e-4)}
    for value, expected, old in zip(after, wanted_after, before, strict=True):
        same(value, expected, f"{changed} gives no statistics in full precision", **near)
        assert not torch.equal(value, old), f"{changed} writes over statistics"


def test_a_normalised_batch_can_be_differentiated(device, same):
    given = [torch.randn(6, 3, 4, device=device).double(), *torch.randn(2, 3, device=device).double()]

    statistics = torch.zeros(3).to(given[0]), torch.ones(3).to(given[0])

    def ours(*given: torch.Tensor) -> torch.Tensor:
        return internals.batch_normalised(*given, *statistics, 0.1, 1e-3)[0].sin().sum()

    def torchs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3).sin().sum()

    found, wanted = (torch.func.grad(one, (0, 1, 2))(*given) for one in (ours, torchs))
    same(found, wanted, "the gradient of _native_batch_norm_legit_functional")


def test_autocast_says_to_what_it_rounds(device):
    changed = "torch changed: what can be asked about autocast"
    assert internals.autocast_type(device) is None, changed
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype):
            assert internals.autocast_type(device) == dtype, changed
            assert (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype == dtype
            with torch.autocast(device, enabled=False):
                assert internals.autocast_type(device) is None, changed


def cudnn() -> dict[str, bool]:
    return {
        name: getattr(torch.backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    }


@pytest.mark.parametrize("on", [False, True])
def test_flags_of_cudnn_are_set_and_set_back(on):
    before, wanted = cudnn(), dict.fromkeys(cudnn(), on)
    with internals.cudnn_flags(**wanted):
        assert cudnn() == wanted, "torch changed: cudnn.flags does not set what is documented"
    assert cudnn() == before, "torch changed: cudnn.flags does not set back"


@pytest.mark.parametrize("filled", [False, True])
def test_new_memory_is_not_filled(filled, monkeypatch):
    settings = torch.utils.deterministic
    monkeypatch.setattr(settings, "fill_uninitialized_memory", filled)
    changed = "torch changed: the setting that fills new memory"
    with internals.memory_left_as_it_is():
        assert settings.fill_uninitialized_memory is False, changed
    assert settings.fill_uninitialized_memory is filled, changed


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("kept", [False, True])
def test_compiled_programs_write_what_is_to_be_in_memory(kept, device):
    from torch._inductor.utils import run_and_get_code  # which takes a second, for every worker

    def function(x: Tensor) -> Tensor:
        signs = (x > 0).to(torch.int8)
        signs = internals.in_memory(signs) if kept else signs
        return signs[:, :, None] == torch.arange(2, device=device)  # each is read twice

    x = torch.randn(8, 8, device=device)
    compiled = torch.compile(function, fullgraph=True, dynamic=False)
    found, code = run_and_get_code(compiled, x)
    assert torch.equal(found, function(x))
    written = any("empty" in line and "torch.int8" in line for line in "".join(code).splitlines())
    assert written == kept, "torch changed: compiled programs keep other values than those viewed by strides"
