"""A mixer of one piece of a sequence after others equals the mixer of the whole."""

import pytest
import torch

from dnadiff.networks.backbone.mixer import BiMamba, UniMamba
from dnadiff.networks.kernels.facade import for_mixer


def continued_mixer(hidden, weights, past=None, state=None, scan="auto"):
    kernels = for_mixer(hidden, weights, None, scan, states=True)
    return kernels.continued_mixer(hidden, weights, past, state)


@pytest.mark.parametrize("d_conv", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(5, 3, 1), (1, 1, 1, 6), (40, 33)])
def test_pieces_in_float32_equal_the_operations_in_float64(sizes, d_conv):
    torch.manual_seed(0)
    mixer = BiMamba(24, d_state=8, d_conv=d_conv)
    hidden = torch.randn(3, sum(sizes), 24)
    expected, got = [], []
    for net, x, out in ((mixer.double(), hidden.double(), expected), (mixer, hidden, got)):
        net.to(x.dtype)
        past = h = None
        for piece in x.split(sizes, 1):
            with torch.set_grad_enabled(
                x.dtype == torch.float64
            ):  # gradients are on: the operations one by one
                out.append(net.block(piece, past, h, None, "auto"))
                clean, past, h = net.carry(piece, past, h, None, "auto")
            out.append(clean)
        out += [past, h]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_every_back_end_continues():
    torch.manual_seed(0)
    mixer, hidden = BiMamba(16, d_state=4), torch.randn(2, 9, 16)
    both, one = mixer.weights(), UniMamba.weights(mixer)
    with torch.no_grad():
        whole = [continued_mixer(hidden, both, scan=scan) for scan in ("portable", "auto")]
        first = continued_mixer(hidden[:, :4], one)
        second = continued_mixer(hidden[:, 4:], one, *first[1:])
        forward = continued_mixer(hidden, one)
    for a, b in zip(*whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.cat([first[0], second[0]], 1), forward[0], rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(second[2], forward[2], rtol=1e-4, atol=1e-5)


def test_shapes_that_do_not_fit_are_refused():
    mixer, hidden = BiMamba(16, d_state=4), torch.randn(2, 9, 16)
    weights = UniMamba.weights(mixer)
    with pytest.raises(ValueError, match="past has shape"):
        continued_mixer(hidden, weights, torch.zeros(2, 2, 32))
    with pytest.raises(ValueError, match="state"):
        continued_mixer(hidden, weights, None, torch.zeros(2, 32, 5))
