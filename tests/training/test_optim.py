import copy

from torch import nn

from dnadiff.networks.backbone.mixer import Direction
from dnadiff.training.optim import parameter_groups


def test_only_matrices_are_decayed():
    network = nn.Linear(2, 3)
    decayed, free = parameter_groups(network, 0.1)
    assert decayed["params"] == [network.weight] and decayed["weight_decay"] == 0.1
    assert free["params"] == [network.bias] and free["weight_decay"] == 0


def test_parameters_of_state_spaces_are_not_decayed_in_a_copy_either():
    network = copy.deepcopy(Direction(d_inner=4, d_state=3, d_conv=2, dt_rank=2))
    decayed, free = parameter_groups(network, 0.1)
    assert {id(p) for p in free["params"]} == {
        id(p) for p in (network.A_log, network.D, network.dt_bias, network.conv_bias)
    }
    assert {id(p) for p in decayed["params"]} == {
        id(p) for p in (network.conv_weight, network.x_proj.weight, network.dt_weight)
    }
