"""The file of designs: a file of samples whose records have rewards, with unguided samples of the
same model next to it, and an inverse temperature that these may choose."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from dnadiff.design.generate import SampleBatch
from dnadiff.design.method.base import Designer
from dnadiff.design.pilot import Choice, Pilot, refined
from dnadiff.design.request import starting_from
from dnadiff.design.samples import SampleJob, numbers_of, record_of
from dnadiff.fields import Json, JsonDict, JsonMap
from dnadiff.genomics.metrics.composition import DesignTable, evenly_spaced, sixmer_distance
from dnadiff.jobs.job import Result
from dnadiff.progress import Progress, log
from dnadiff.store.disk import write_bytes

_MIN_SCORED = 100  # real sequences, if there are fewer designs


def unguided_path(output: Path) -> Path:
    """The file of the unguided samples next to a file of designs: `x.unguided.fa` of `x.fa.gz`."""
    name, _, kind = output.name.removesuffix(".gz").rpartition(".")
    return output.with_name(f"{name}.unguided.{kind}")


@dataclass(eq=False, kw_only=True)
class DesignJob(SampleJob):
    """The designs of a request.

    Args:
        generator: whose `beta` is replaced by the chosen one.
        pilot: number of unguided samples; 0 makes none.
        design: what the JSON file says of the reward and the method.
        real: bases of real sequences that get rewards and likelihoods too.
    """

    generator: Designer
    pilot: int
    design: JsonMap
    real: Sequence[ndarray] = ()
    found = "pilot"
    mass = "log normalizing constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.side_files = [unguided_path(self.output)] if self.pilot else []
        self.beta = self.generator.beta
        self.totals |= {"reward_sum": 0.0, "reward_best": None, "reward_calls": 0}
        if self.design["beta"] is None:  # not used; what was the default
            self.earlier = {"beta": lambda: (10.0,)}
        self._records = ""
        self._more = 0.0  # what resampling adds to beta, on average over the templates

    @property
    def steps(self) -> None:
        """Methods make more network calls than a sampler."""

    @property
    def choice(self) -> Choice:
        """What the pilot chose."""
        return Choice(**self.prepared["choice"])

    def tuned(self) -> Designer:
        choice = self.choice
        if self.beta.is_automatic:
            chosen = {"beta": float(f"{choice.beta:.6g}")}
            self.header_of_records = {**self.header_of_records, **chosen}
        return self.generator.with_choice(choice)

    def prepare(self) -> Json:
        """The choice of beta, the records of the unguided samples, and what the JSON file says of
        them."""
        with closing(Progress(self.pilot, "unguided", unit=self.items)):
            pilot = Pilot.of(self.generator, self.request, self.pilot, self.seed, self.batch_size)
        name = self.generator.goal.reward.name
        records = b"".join(
            record_of(self.output, f"unguided_{i}", design, {**target.about, **vars(design)})
            for i, (target, design) in enumerate(zip(pilot.targets, pilot.designs), 1)
        )
        return {
            "choice": pilot.chosen(self.beta, name)._asdict(),
            "unguided": pilot.summary() if self.pilot else None,
            "records": records.decode(),
        }

    def begin(self) -> None:
        super().begin()
        if self.beta.is_automatic:
            log.info(f"beta: {self._chosen()}")

    def kept(self, found: Json) -> Json:
        self._records = found["records"]
        return {key: found[key] for key in ("choice", "unguided")}

    def _chosen(self) -> str:
        choice = self.choice
        number = self.prepared["unguided"]["number"]
        of = f"of {number:,} unguided samples"
        if not choice.levels:
            return f"{choice.beta:.4g}, {self.beta.number:g} / standard deviation {of}"
        level = np.mean([*choice.levels.values()])
        return (
            f"{choice.beta:.4g}, for a mean reward of {level:.4g}, quantile {self.beta.number:g} "
            f"{of} (effective sample size {choice.effective:.1f})"
        )

    def fold(self, result: Result) -> tuple[bytes, int]:
        if self._records:  # with the first designs: nothing is left of a run without any
            write_bytes(unguided_path(self.output), self._records.encode())
            self._records = ""
        best, new = self.totals["reward_best"], result.about["reward_best"]
        self.totals["reward_best"] = new if best is None else max(best, new)
        return super().fold(result)

    def totals_of(self, batch: SampleBatch) -> JsonDict:
        assert batch.rewards is not None
        return super().totals_of(batch) | {
            "reward_sum": float(batch.rewards.sum()),
            "reward_best": float(batch.rewards.max()),
            "reward_calls": batch.reward_calls,
        }

    def weights(self, collected: Path) -> ndarray:
        found = super().weights(collected)
        choice = self.choice
        if self.resampled is None:
            return found
        rewards = numbers_of(collected, self.output, "reward")
        log_weight, rewards = (x.reshape(-1, self.request.each) for x in (found, rewards))
        more = [
            refined(r, w, choice.beta, choice.levels.get(str(group)))
            for group, (r, w) in enumerate(zip(rewards, log_weight))
        ]
        self._more = float(np.mean(more))
        return (log_weight + np.array(more)[:, None] * rewards).ravel()

    def finish(self, collected: Path) -> JsonDict:
        content = super().finish(collected)
        totals = self.totals
        reward = {
            "mean": totals["reward_sum"] / len(self.request),
            "best": totals["reward_best"],
        }
        design: JsonDict = {
            "calls": totals["reward_calls"],
            "unit": self.generator.goal.reward.reward.unit,
        }
        unguided = totals["pilot"]["unguided"]
        if self.model.is_dna:
            ours = DesignTable.read(self.output, content["records"])
            design |= {"distinct": ours.num_distinct, "gc": ours.gc}
            if self.generator.judge is not None:
                mean = float(ours.columns["judge"].mean())
                design["judge"] = {"unit": self.generator.judge.unit, "mean": mean}
            if self.resampled is not None:  # of the records written
                design["proposals"] = reward
                written = ours.columns["reward"]
                reward = {"mean": float(written.mean()), "best": float(written.max())}
            if unguided is not None:
                theirs = DesignTable.read(unguided_path(self.output), unguided["number"])
                distance = sixmer_distance(ours.sequences, theirs.sequences, self.seed)
                key = "js_6_from_unguided"
                design[key], baseline = distance or (None, None)
                unguided = {**unguided, "gc": theirs.gc, key: baseline}
        if self.beta.is_automatic:
            choice = self.choice
            levels = [*choice.levels.values()]
            design["steering"] = {
                "beta": choice.beta + self._more,
                "beta_of_pilot": choice.beta,
                "level": float(np.mean(levels)) if levels else None,
                "effective_size": choice.effective,
                "sd": choice.sd,
            }
        content["design"] = {**self.design, **reward, **design}
        if unguided is not None:
            content["unguided"] = unguided
        if len(self.real):
            content["real"] = self._of_real()
        return content

    def _of_real(self) -> JsonDict:
        """Rewards of real sequences, as many as there are designs and at least 100, and their
        log-probabilities in nats per base."""
        generator = self.generator
        letters = np.frombuffer(b"ACGT", np.uint8)
        kept = evenly_spaced(len(self.real), max(self.content["records"], _MIN_SCORED))
        texts = [letters[self.real[i]].tobytes().decode() for i in kept]
        request = starting_from(generator.tokenizer, [("real", text) for text in texts], 1)
        log_prob: list[float] = []
        for start in range(0, len(texts) if generator.num_draws else 0, self.batch_size):
            numbers = range(len(texts))[start : start + self.batch_size]
            targets = [request[i] for i in numbers]
            tokens = [target.start for target in targets if target.start is not None]
            batch = SampleBatch(targets, tokens, 0, 0, None)
            bounds = generator.bounds(batch, numbers, generator.num_draws, self.seed)
            log_prob += (bounds / len(texts[0])).tolist()
        return {"reward": generator.goal.reward(texts).tolist(), "log_prob": log_prob}

    def table(self) -> dict[str, str]:
        design = self.content["design"]
        unguided = self.content.get("unguided")
        each = design["calls"] / len(self.request)
        rows = {"reward": f"{design['mean']:.4f} on average, {design['best']:.4f} at best"}
        if unguided:
            of = f"{unguided['number']:,} samples, {unguided['network_calls']:,} network calls"
            rows["unguided"] = f"{unguided['reward']['mean']:.4f} on average ({of})"
        if self.beta.is_automatic:
            rows["beta"] = self._chosen()
        return rows | {"reward calls": f"{design['calls']:,} ({each:.1f} for each design)"}
