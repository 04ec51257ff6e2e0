"""What `Model.sample` and `Model.design` return: samples as strings with their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

_OF_DESIGNS = ("reward_calls", "ess", "changes", "longest_match")


class Design(str):
    """A sample as a string. All but the first two attributes are None unless it was designed for a
    reward.

    Attributes:
        log_prob: a Monte Carlo estimate of a lower bound on log p of the generated part given the
            fixed part, nats, which a single estimate may exceed; exact for an autoregressive model
            and for blocks of one token; None if not requested.
        log_weight: its log importance weight, nats; 0 if unconstrained, None if the sampler does
            not support weights.
        reward: of the sequence.
        reward_calls: the reward calls of its batch, divided by the designs of the batch.
        ess: effective sample size of its batch; None if the method has no weights.
        changes: positions at which it differs from the sequence that it started from; None if it
            started from none.
        longest_match: the longest exact match with the training data, bases; None if not searched.
    """

    log_prob: float | None
    log_weight: float | None
    reward: float | None = None
    reward_calls: float | None = None
    ess: float | None = None
    changes: int | None = None
    longest_match: int | None = None

    def __new__(
        cls,
        text: str,
        log_prob: float | None = None,
        log_weight: float | None = 0.0,
        reward: float | None = None,
        reward_calls: float | None = None,
        ess: float | None = None,
        changes: int | None = None,
        longest_match: int | None = None,
    ) -> Design:
        """The string with its numbers."""
        design = super().__new__(cls, text)
        design.log_prob, design.log_weight, design.reward, design.reward_calls = (
            log_prob,
            log_weight,
            reward,
            reward_calls,
        )
        design.ess, design.changes, design.longest_match = ess, changes, longest_match
        return design


class Designs(list[Design]):
    """Samples in their order."""

    def to_frame(self) -> pandas.DataFrame:
        """A row for each: `sequence`, `log_prob`, `log_weight`, `reward`, and those other
        attributes of `Design` that one of them has."""
        import pandas

        others = [
            name for name in _OF_DESIGNS if any(vars(each)[name] is not None for each in self)
        ]
        rows = [{"sequence": str(each), **vars(each)} for each in self]
        return pandas.DataFrame(
            rows, columns=["sequence", "log_prob", "log_weight", "reward", *others]
        )
