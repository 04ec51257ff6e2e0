from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dnadiff.networks.kernels import facade, native
from dnadiff.networks.kernels.backend import Backend


@pytest.fixture
def scan_inputs() -> Callable[..., list[Tensor]]:
    """u, delta, A, B, C, D, delta_bias, the same numbers in every dtype."""

    def make(Bt: int, L: int, E: int, N: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        generator = torch.Generator().manual_seed(L + 7 * E + 11 * N)
        normal = [
            torch.randn(s, generator=generator, dtype=torch.float64)
            for s in ((Bt, L, E), (Bt, L, E), (E, N), (Bt, L, N), (Bt, L, N), E, E)
        ]
        normal[2] = -normal[2].exp()
        return [x.to(torch.float32).to(dtype).requires_grad_() for x in normal]

    return make


@pytest.fixture
def mixer_tensors() -> Callable[..., list[Tensor]]:
    """One or two hidden states (2, L, D), in_proj, out_proj and the weights of the directions, the
    same numbers in every dtype."""

    def make(
        L: int,
        D: int,
        E: int,
        N: int,
        R: int,
        K: int,
        num_ways: int,
        dtype: torch.dtype = torch.float32,
        streams: int = 1,
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(L + E)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return (
                (torch.randn(shape, generator=generator, dtype=torch.float64) * scale)
                .float()
                .to(dtype)
                .requires_grad_()
            )

        tensors = [
            *(normal(2, L, D) for _ in range(streams)),
            normal(2 * E, D, scale=0.3),
            normal(D, E, scale=0.3),
        ]
        for _ in range(num_ways):
            tensors += [
                normal(E, K),
                normal(E),
                normal(R + 2 * N, E, scale=0.3),
                normal(E, R),
                normal(E),
                normal(E, N),
                normal(E),
            ]
        return tensors

    return make


@pytest.fixture
def values_and_grads() -> Callable[..., list[Tensor]]:
    """f(*inputs) and the gradients of a fixed weighted sum of it."""

    def run(f: Callable[..., Tensor], inputs: list[Tensor], **kwargs) -> list[Tensor]:
        y = f(*inputs, **kwargs)
        weight = torch.arange(y.numel(), dtype=torch.float64).view_as(y).mul(0.37).sin().to(y.dtype)
        return [y.detach(), *torch.autograd.grad((y * weight).sum(), inputs)]

    return run


@pytest.fixture
def close() -> Callable[..., None]:
    """Asserts equality within `tolerance` of each tensor's largest entry."""

    def check(ours: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
        for i, (x, y) in enumerate(zip(ours, expected, strict=True)):
            assert x.shape == y.shape
            error = (x.double() - y.double()).abs().max() / y.double().abs().max().clamp_min(1e-6)
            assert error < tolerance, (
                f"part {i}: {error:.1e}"
            )  # 0: the output, then gradients in the order of the arguments

    return check


@pytest.fixture
def clear_caches():
    """Clears the caches of working scans, working products and the loaded library, before and
    after."""

    def clear() -> None:
        for cached in (facade._failure, facade._fastest, native.library):
            cached.cache_clear()

    clear()
    yield
    clear()


@pytest.fixture
def in_place_of_cpu(clear_caches, monkeypatch) -> Callable[[Backend], None]:
    """Makes a back end the first one, in place of that in C++."""
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    return lambda backend: monkeypatch.setitem(facade.SCANS, "cpu", backend)


@pytest.fixture(params=["cpu", "portable", "reference"])
def scan(request) -> str:
    return request.param
