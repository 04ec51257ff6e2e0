"""What a score means: its rank among those of random SNVs of the genome, and the mean score of
random insertions and deletions of the same kind.

Random variants are scored when they are first needed, and kept in a JSON file in the folder of the
model, under a digest of everything that their scores depend on."""

import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff.diffusion.draws import hash64
from dnadiff.fields import JsonDict
from dnadiff.formats.regions import Row
from dnadiff.genomics.variants.variant import TOKENIZER, Alleles, Edit
from dnadiff.progress import log
from dnadiff.store.disk import cache_dir, json_hash, locked, read_json, write_json
from dnadiff.weights.tensors import identity

FILE_NAME = "neutral_variants.json"
# of all changes, and of each kind of indels
NUM_SNVS = 20_000
NUM_INDELS = 64
_FEWEST = 16  # indels of a kind that a genome must have
_RUN = 4  # equal bases that are a homopolymer run
_TRIES = 40_000  # places at which indels of a kind are looked for
_KEYS = "window", "stranded", "sites_per_window", "seed"  # of a network
_PACKAGE = Path(__file__).parents[2]


def kind_of(edit: Edit) -> str:
    """What variants have in common that are compared: the change of an SNV, as `A>C`; of an indel
    whether bases are inserted or deleted, how many, and whether they are equal and in a run of at
    least four such bases of the genome."""
    if not edit.surplus:
        return f"{edit.ref}>{edit.alt}"
    in_run = len(set(edit.ref + edit.alt)) == 1 and edit.shifts + len(edit.ref) >= _RUN
    change = "insertion" if len(edit.alt) > len(edit.ref) else "deletion"
    return f"{change} of {edit.surplus}{' in a homopolymer run' * in_run}"


def random_places(alleles: Alleles, number: int, purpose: str) -> list[tuple[str, int]]:
    """Different places of the genome, at most `number`, in random order; always the same ones for a
    purpose."""
    names, lengths = zip(*alleles.reference.lengths.items())
    draws = np.random.default_rng(hash64("neutral variants", purpose))
    records = draws.choice(len(names), number, p=np.array(lengths) / sum(lengths))
    found = ((names[each], int(draws.integers(lengths[each]))) for each in records)
    return list(dict.fromkeys(found))


def random_variants(alleles: Alleles, like: Edit) -> list[Edit]:
    """Different random variants: for an SNV all SNVs of random places, about `NUM_SNVS`; for an
    indel `NUM_INDELS` of its kind, or as many as are found. Inserted bases are those of another
    place, or of the run."""
    kind = kind_of(like)
    size = like.surplus
    found = dict[Edit, None]()

    def letters(record: str, place: int) -> str:
        end = min(place + size + 1, alleles.reference.lengths[record])
        return TOKENIZER.decode(alleles.reference.window(record, place, end))

    places = random_places(alleles, _TRIES if size else -(-NUM_SNVS // 3), kind * bool(size))
    for (record, place), other in zip(places, reversed(places)):
        here = letters(record, place)
        ref = here[0]
        alts = list("ACGT".replace(here[0], ""))
        if size:
            new = ref * size if kind.endswith("run") else letters(*other)[:size]
            ref, alts = (ref, [ref + new]) if len(like.alt) > len(like.ref) else (here, [ref])
        for each in alleles.edits(Row("", record, place + 1, ".", ref, tuple(alts)))[0]:
            if isinstance(each, Edit) and (not size or kind_of(each) == kind):
                found[each] = None
        if size and len(found) == NUM_INDELS:
            break
    return list(found)


@dataclass(eq=False)
class Neutral:
    """Random variants as a scale for the scores of others.

    Args:
        scorer: computes log-likelihood ratios, a `dnadiff.genomics.variants.effects.Scorer`.
        model: file in whose folder they are kept; of the alignment for a method without a model.
        percentile, calibrate_indels: what is asked for.

    Attributes:
        scales: the ratios of random variants of each kind that were read or computed.
    """

    scorer: Any
    model: Path
    percentile: bool
    calibrate_indels: bool
    scales: dict[str, list[float]] = field(default_factory=dict)

    def values(self, edit: Edit, ratio: float) -> dict[str, float]:
        """The columns of a variant with this log-likelihood ratio.

        `percentile` is the share of random SNVs with the same change and a lower ratio, in percent;
        equal ones count half. `percentile_SE` is the standard deviation of that share given those
        that were counted, for a uniform prior. `LLR_calibrated` is the ratio minus the mean of
        random indels of the same kind; NaN if the genome has few of them, and for other variants
        the ratio itself.
        """
        found = {}
        if self.percentile and edit.kind == "SNVs" and not math.isnan(ratio):
            scale = np.array(self.scale(edit))
            below = ((scale < ratio).sum() + (scale <= ratio).sum()) / 2
            size = len(scale)
            share = (below + 1) / (size + 2)
            error = (share * (1 - share) / (size + 3)) ** 0.5
            rank = 100 * below / size if size else math.nan
            found = {"percentile": rank, "percentile_SE": 100 * error}
        if self.calibrate_indels:
            bias = self.bias(edit)["bias_before"] if edit.surplus else 0.0
            found["LLR_calibrated"] = ratio - bias
        return found

    def bias(self, edit: Edit) -> JsonDict:
        """The bias of indels of the same kind before and after it is subtracted: the mean ratio of
        random ones, and the difference of the means of two halves of them; with errors. NaN where
        the genome has too few."""
        scale = np.array(self.scale(edit))
        if len(scale) < _FEWEST:
            return {"indels": len(scale), "bias_before": math.nan}
        error = scale.std(ddof=1) / len(scale) ** 0.5
        return {
            "indels": len(scale),
            "bias_before": scale.mean(),
            "bias_before_SE": error,
            "bias_after": scale[::2].mean() - scale[1::2].mean(),
            "bias_after_SE": 2 * error,
        }

    @cached_property
    def settings(self) -> JsonDict:
        """Everything that the ratios depend on, besides random numbers."""
        network = self.scorer.network
        method = self.scorer.method
        return {
            "model": identity(network.denoiser) if method.needs_model else None,
            "genome": network.reference.digest,
            "alignment": network.alignment and network.alignment.identity,
            "variant_method": method.settings(),
            **{key: getattr(network, key) for key in _KEYS},
        }

    def scale(self, edit: Edit) -> list[float]:
        """The ratios of random variants of the same kind, computed by the first process that needs
        them."""
        if (kind := kind_of(edit)) in self.scales:
            return self.scales[kind]
        folder = self.model.absolute().parent
        key = json_hash(self.settings)[:16]
        folder = folder.parent if folder.name == "checkpoints" else folder
        files = [folder / FILE_NAME]
        if folder.is_relative_to(_PACKAGE) or not os.access(folder, os.W_OK):
            # A model that ships with the package may bring its own.
            files.append(cache_dir("variants") / f"{key}.json")
        lock = cache_dir("variants") / f"{json_hash(str(files[-1]))[:16]}.lock"
        with locked(lock, f"{files[-1]}: another process adds {kind}"):
            content: JsonDict = {}
            for file in files:
                content = read_json(file) if file.is_file() else {}
                self.scales |= content.get(key, {})
            if kind not in self.scales:
                edits = random_variants(self.scorer.alleles, edit)
                log.info(f"scoring {len(edits):,} random variants once; kept in {files[-1]}")
                self.scales[kind] = []
                for each, ratio in zip(edits, self.scorer.ratios(edits)):
                    if not math.isnan(ratio):
                        self.scales.setdefault(kind_of(each), []).append(ratio)
                content[key] = {"settings": self.settings, **self.scales}
                write_json(files[-1], content, indent=0)
        return self.scales[kind]
