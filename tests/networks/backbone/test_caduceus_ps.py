import pytest
import torch

from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS


def random_network(dna, **options):
    """A network with all parameters changed, so that no property holds only because a parameter is
    zero."""
    torch.manual_seed(0)
    network = CaduceusPS(dna, 16, 3, **options).eval()
    with torch.no_grad():
        for p in network.parameters():
            p += 0.3 * torch.randn_like(p)
    return network


def other_strand(logits, dna):
    """flip_length(logits)[..., complement], without the padded columns."""
    return logits.flip(1)[..., list(dna.complement)]


@pytest.mark.parametrize("scan", ["cpu", "portable", "reference"])
@pytest.mark.parametrize(("name", "swap"), [("caduceus_ps", True), ("caduceus_ps_unfused", False)])
def test_logits_and_features_match_the_published_network(published, dna, name, swap, scan):
    network = CaduceusPS(dna, 32, 3, swap_strands=swap, scan=scan)
    file = published(network, name)
    torch.testing.assert_close(
        network.features(file["input_ids"]), file["last_hidden_state"], rtol=1e-4, atol=1e-5
    )
    assert (network(file["input_ids"]) - file["logits"]).abs().max() < 1e-4 * file[
        "logits"
    ].abs().max()


def test_swapping_strands_gives_another_function_of_the_same_weights(parity):
    one, other = parity("caduceus_ps")["logits"], parity("caduceus_ps_unfused")["logits"]
    assert (one - other).abs().max() > 1e-2 * one.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("length", [1, 2, 50, 51])
@pytest.mark.parametrize(
    "options",
    [{}, {"swap_strands": True}, {"bidirectional_strategy": "ew_multiply", "rms_norm": False}],
    ids=str,
)
def test_logits_are_reverse_complement_equivariant(dna, options, length, dtype, tolerance):
    # also with mask, N and pad in the sequence
    network = random_network(dna, **options).to(dtype)
    ids = torch.randint(0, 12, (3, length), generator=torch.Generator().manual_seed(length))
    ids.view(-1)[:3] = torch.tensor([3, 11, 4])
    with torch.no_grad():
        logits, again = network(ids)[..., :12], network(dna.reverse_complement(ids))[..., :12]
    assert logits.dtype == dtype and (again - other_strand(logits, dna)).abs().max() < tolerance


def test_padding_and_conditions_keep_the_equivariance(dna):
    network = random_network(
        dna, swap_strands=True, num_labels=2, time_conditioning=True, cond_dim=8
    )
    ids, condition = (
        torch.randint(7, 11, (2, 20)),
        {"sigma": torch.tensor([0.1, 2.0]), "cond": torch.eye(2)},
    )
    valid = torch.arange(20) < torch.tensor([[20], [13]])
    logits = network(ids, **condition, valid=valid)[..., :12]
    mirrored = network(dna.reverse_complement(ids), **condition, valid=valid.flip(1))[..., :12]
    torch.testing.assert_close(mirrored, other_strand(logits, dna), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        network(ids[1:, :13], torch.tensor([2.0]), torch.eye(2)[1:])[..., :12],
        logits[1:, :13],
        rtol=1e-4,
        atol=1e-5,
    )
    assert (
        network(ids, valid=valid)[..., :12] - logits
    ).abs().max() > 1e-2  # the condition has an effect


def test_losses_of_both_strands_are_equal_if_the_mask_is_mirrored(dna):
    denoiser = Denoiser(random_network(dna))
    x0, masked = torch.randint(7, 11, (2, 30)), torch.rand(2, 30) < 0.5

    def nll(x0, masked):
        xt = x0.masked_fill(masked, dna.mask_id)
        return -denoiser.log_probs(xt, positions=masked).gather(-1, x0[masked][:, None]).sum()

    torch.testing.assert_close(
        nll(x0, masked), nll(dna.reverse_complement(x0), masked.flip(1)), rtol=1e-5, atol=1e-5
    )


def test_logits_are_the_sum_of_a_caduceus_on_both_strands(dna):
    ps = random_network(dna)
    ph = Caduceus(dna, 16, 3).eval()
    ph.load_state_dict(ps.state_dict())  # the same parameters
    ids = torch.randint(7, 11, (2, 9))
    both = ph(ids)[..., :12] + other_strand(ph(dna.reverse_complement(ids))[..., :12], dna)
    torch.testing.assert_close(ps(ids)[..., :12], both, rtol=1e-4, atol=1e-4)
    assert ps.features(ids).shape == (2, 9, ps.d_model) == (2, 9, 32)


def test_swapping_strands_is_equivalent_to_reordering_the_weights(dna):
    torch.manual_seed(0)
    swapping, plain = (CaduceusPS(dna, 16, 4, swap_strands=swap).double() for swap in (True, False))
    torch.nn.init.normal_(swapping.embedding.weight)
    plain.load_state_dict(swapping.state_dict())
    with torch.no_grad():
        for layer, same in zip(plain.layers[::2], swapping.layers[::2], strict=True):
            torch.nn.init.normal_(layer.norm.weight)
            same.norm.weight.copy_(layer.norm.weight.flip(0))
            layer.mixer.in_proj.weight.copy_(layer.mixer.in_proj.weight.flip(1))
            layer.mixer.out_proj.weight.copy_(layer.mixer.out_proj.weight.flip(0))
            forward = {
                name: tensor.clone() for name, tensor in layer.mixer.fwd.state_dict().items()
            }
            layer.mixer.fwd.load_state_dict(layer.mixer.rev.state_dict())
            layer.mixer.rev.load_state_dict(forward)
    ids = torch.randint(0, 12, (2, 15))
    torch.testing.assert_close(plain.features(ids), swapping.features(ids))


def test_all_parameters_get_a_finite_gradient(dna):
    network = CaduceusPS(dna, 16, 1)
    objective = MDLM(AbsorbingProcess(dna, LogLinear()))
    objective(
        Denoiser(network), torch.randint(7, 11, (4, 16)), torch.ones(4, 16), Draws.for_batch(0, 4)
    ).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_a_vocabulary_without_complement_is_refused():
    with pytest.raises(ValueError, match=r"no complement.*use backbone=caduceus"):
        CaduceusPS(CharTokenizer("abc").vocab, 16, 1)
