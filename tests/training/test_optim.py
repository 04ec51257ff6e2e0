from torch import nn

from dnadiff.training.optim import parameter_groups


def test_only_matrices_are_decayed():
    network = nn.Linear(2, 3)
    decayed, free = parameter_groups(network, 0.1)
    assert decayed["params"] == [network.weight] and decayed["weight_decay"] == 0.1
    assert free["params"] == [network.bias] and free["weight_decay"] == 0
