from dnadiff.supervised.study import pretraining_warning


def models(fine_tuned, scratch):
    def found(scores):
        return {
            "found": [
                [{"valid_accuracy": accuracy, "valid_loss": loss}] for accuracy, loss in scores
            ]
        }

    return {"fine-tuned": found(fine_tuned), "scratch": found(scratch)}


def warning(fine_tuned, scratch):
    return pretraining_warning(models(fine_tuned, scratch))


def test_the_mean_over_seeds_is_compared_and_the_loss_breaks_ties():
    assert "(accuracy 0.700 and 0.800)" in warning(
        [(0.6, 1.0), (0.8, 1.0)], [(0.8, 1.0), (0.8, 1.0)]
    )
    assert warning([(0.8, 1.0)], [(0.6, 0.1)]) is None
    assert "(loss 0.500 and 0.400)" in warning([(0.8, 0.5)], [(0.8, 0.4)])
    assert warning([(0.8, 0.4)], [(0.8, 0.4)]) is None


def test_values_are_compared_by_the_loss():
    of_values = {
        name: {"found": [[{"valid_loss": loss}]]}
        for name, loss in (("fine-tuned", 0.9), ("scratch", 0.7))
    }
    assert "(loss 0.900 and 0.700)" in pretraining_warning(of_values)
    swapped = dict(zip(of_values, reversed(of_values.values())))
    assert pretraining_warning(swapped) is None


def test_one_network_alone_gives_no_warning():
    assert pretraining_warning({"fine-tuned": {"found": [[{"valid_accuracy": 0.1}]]}}) is None


def test_weighted_classes_are_compared_by_the_weighted_accuracy():
    of_weighted = {
        n: {"found": [[{"valid_weighted_accuracy": a, "valid_loss": 1.0}]]}
        for n, a in (("fine-tuned", 0.5), ("scratch", 0.6))
    }
    assert "(weighted accuracy 0.500 and 0.600)" in pretraining_warning(of_weighted)
