"""The protocols of `dnadiff.evaluate`: ways to estimate the likelihood of windows, each with a
progress bar and its description."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import ClassVar

from typing_extensions import override

from dnadiff import likelihood
from dnadiff.config import Config
from dnadiff.denoiser import BaseDenoiser
from dnadiff.likelihood.held_out import Windows
from dnadiff.likelihood.monte_carlo import Batches, is_exact
from dnadiff.likelihood.one_draw import check_one_draw
from dnadiff.likelihood.ordered import ORDERS, check_ordered, ordered
from dnadiff.likelihood.record import Likelihood
from dnadiff.noise import NoiseSchedule
from dnadiff.process import AbsorbingProcess, Process, require
from dnadiff.progress import Progress

log = logging.getLogger("dnadiff")


class Estimator(ABC):
    """A way to estimate the likelihood of windows.

    Args:
        config: options of `dnadiff.evaluate`, as `evaluation.check_options` returns them.
        process: the absorbing process.
        windows: what to evaluate.

    Attributes:
        process_type: the process whose bound or likelihood it is.
        has_curve: whether the estimates yield h(n).
        has_se: whether they have a Monte Carlo error.
    """

    process_type: ClassVar[type[Process]] = AbsorbingProcess
    has_curve: ClassVar[bool] = False
    has_se: ClassVar[bool] = True
    can_mirror: ClassVar[bool] = (
        True  # whether reading the other strand with mirrored masks is the same estimate of it
    )

    def __init__(self, config: Config, process: AbsorbingProcess, windows: Windows) -> None:
        self.config, self.process, self.windows = config, process, windows

    @classmethod
    def check_model(cls, denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
        """Raises ValueError if the estimate is not valid for this model or its schedule."""
        require(f"estimator {cls.__name__}", denoiser, cls.process_type)

    @classmethod
    def check_draws(cls, num_draws: int) -> None:
        """Raises ValueError if the estimate cannot use this number of draws."""

    def run(
        self,
        denoiser: BaseDenoiser,
        batches: Batches | None = None,
        same_draws_as: Likelihood | None = None,
        curve: bool = False,
    ) -> Likelihood:
        """The likelihood of the windows, or of `batches`.

        Args:
            same_draws_as: an earlier result whose number of draws replaces `target_se`.
            curve: measure all that h(n) needs, if `has_curve`.
        """
        self.bar, self.calls, self.curve = Progress(len(self.windows), "evaluate"), 1, curve
        result = self.estimate(
            denoiser, self.windows if batches is None else batches, same_draws_as
        )
        self.bar.close()
        return result

    def _progress(self, num_windows: int) -> None:
        self.bar.update(num_windows, num_windows * self.windows.tiles.length * self.calls)

    @abstractmethod
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        """The likelihood of the batches; see `run`."""

    def other_strand(self, denoiser: BaseDenoiser, result: Likelihood) -> Likelihood:
        """The likelihood of the reverse complements, with the noise of `result`."""
        if (
            denoiser.left_to_right or not self.can_mirror
        ):  # other blocks or another order, so other masks
            return self.run(
                denoiser,
                likelihood.ReverseComplemented(self.windows, self.process.vocab),
                same_draws_as=result,
            )
        return self.run(likelihood.OtherStrand(denoiser, self.process.vocab), same_draws_as=result)

    @abstractmethod
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        """The protocol in words; `blocks` describes those of block diffusion, and `bootstrap` those
        of windows."""


class CountForm(Estimator):
    """The NELBO in count form, with stratified draws."""

    has_curve = True

    @classmethod
    @override
    def check_draws(cls, num_draws: int) -> None:
        likelihood.check_num_draws(num_draws)

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        settings = {
            key: self.config[key] for key in ("num_draws", "max_draws", "seed", "block_size")
        } | {"curve": self.curve}
        target_se, settings["min_draws"] = self.config["target_se"], 0
        if same_draws_as is not None:
            target_se, settings["min_draws"] = None, same_draws_as.num_draws
        self.calls = settings["num_draws"]
        result = likelihood.estimate_to(
            denoiser,
            self.process,
            batches,
            target_se,
            progress=self._progress,
            on_doubling=self._on_doubling,
            **settings,
        )
        if target_se is not None and result.se_mc() > target_se:
            most = settings["max_draws"]
            log.warning(
                f"se_mc is {result.se_mc():.5f} after max_draws={most}, above target_se "
                f"{target_se}; raise max_draws"
            )
        return result

    def _on_doubling(self, draws: int, se: float) -> None:
        self.calls = draws
        self.bar.total = (self.bar.total or 0) + len(self.windows)
        log.info(
            f"se_mc is {se:.5f} nats after {draws} draws, target_se {self.config['target_se']}: "
            f"{draws} more"
        )

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        return (
            f"NELBO, count form{blocks}, {result.num_draws} stratified draws per window; "
            f"{bootstrap}"
        )


class OneDraw(Estimator):
    """The NELBO by the protocol of MDLM's tables."""

    has_se = False

    @classmethod
    @override
    def check_model(cls, denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
        super().check_model(denoiser, noise)
        check_one_draw(denoiser, noise)

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        seed, block_size, is_text = (
            self.config["seed"],
            self.config["block_size"],
            self.process.vocab.complement is None,
        )
        return likelihood.one_draw(
            denoiser,
            self.process,
            batches,
            seed,
            block_size,
            self._progress,
            mask_everything=is_text,
        )

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        batch_size = self.config["batch_size"]
        return (
            "NELBO, MDLM's protocol: one draw of Bernoulli masks per window, times stratified "
            f"over batches of {batch_size}; {bootstrap}"
        )


class ChainRule(Estimator):
    """The exact likelihood of an autoregressive model, or of block diffusion in blocks of one
    token."""

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        return likelihood.chain_rule(denoiser, batches, self.config["block_size"], self._progress)

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        return f"-log p by the chain rule{blocks}, exact; {bootstrap}"


class Ordered(Estimator):
    """The exact likelihood of a model that unmasks one token at a time in a deterministic order."""

    can_mirror = False

    @classmethod
    @override
    def check_model(cls, denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
        super().check_model(denoiser, noise)
        check_ordered(denoiser)

    @override
    def estimate(
        self, denoiser: BaseDenoiser, batches: Batches, same_draws_as: Likelihood | None
    ) -> Likelihood:
        self.calls = self.windows.tiles.length
        return ordered(
            denoiser,
            self.process,
            batches,
            ORDERS[self.config["order"]],
            self.config["block_size"],
            self._progress,
        )

    @override
    def describe(self, result: Likelihood, blocks: str, bootstrap: str) -> str:
        return f"-log p of unmasking in the order {self.config['order']}, exact; {bootstrap}"


PROTOCOLS: dict[str, type[Estimator]] = {"count": CountForm, "mdlm": OneDraw}


def estimator_for(
    denoiser: BaseDenoiser, protocol: str, order: str | None = None
) -> type[Estimator]:
    """How the likelihood of a model is estimated with `protocol`; exactly, if one call gives it
    (`is_exact`) or an order is given."""
    if order is not None:
        return Ordered
    return ChainRule if is_exact(denoiser) else PROTOCOLS[protocol]
