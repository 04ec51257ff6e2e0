"""Attribution: which bases a prediction depends on, by the effect of every substitution, and motifs
in it, found by TF-MoDISco (Shrikumar et al., arXiv 1811.00416), as modisco-lite has it (extra
`explain`), and compared with known ones by memelite's TOMTOM.

In-silico mutagenesis predicts real sequences alone, so that it is exact for any predictor.
Gradients are not offered: docs/explaining.md has what was measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy import ndarray

from dnadiff.data.genome.inputs import Columns, SequenceInput
from dnadiff.fields import JsonDict, JsonMap
from dnadiff.formats.nucleotides import FIRST_BASE
from dnadiff.formats.regions import Region
from dnadiff.formats.tracks import mean_coverage, write_track
from dnadiff.genomics.variants.methods import Network
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.progress import log, phase
from dnadiff.store.disk import read_npz, write_bytes, write_npz
from dnadiff.store.objects import optional_package
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.tensors import identity

# From token ids of sequences (L_i,), and the columns of an alignment or None, to predictions (R, S)
# by R networks; see `dnadiff.supervised.ensemble.ClassifierEnsemble.contrasts`.
Predict: TypeAlias = Callable[[Sequence[ndarray], Columns], ndarray]
# Bases of the windows in which contributions are summed, and of their flanks. Motifs of promoters
# are short: with the default settings a planted one of 8 bases is not found among 300 sequences.
WINDOW, FLANK = 15, 5
MIN_SITES = 100  # of all motifs with one sign; TF-MoDISco gives up below
_TRIM = 0.3  # of the largest contribution: positions at the ends with less are cut off
_RUNS = 16  # of the clustering, with seeds of their own
_TOGETHER = 1 << 22  # tokens of changed sequences that are in memory


def one_hot(ids: ndarray) -> ndarray:
    """Token ids (L,) as (L, 4) bool for A, C, G and T; other letters are none of them."""
    return ids[:, None] == np.arange(FIRST_BASE, FIRST_BASE + 4)


def hypothetical(effects: ndarray) -> ndarray:
    """What each base would contribute at each position, (..., L, 4): its effect minus the mean
    effect of the four bases; 0 where effects (..., L, 4) are not known.

    At the base of the sequence this is its contribution: minus the mean effect of a base that is
    drawn uniformly in its place. TF-MoDISco (arXiv 1811.00416) reads both.
    """
    return np.nan_to_num(effects - effects.mean(-1, keepdims=True))


def positions(region: Region) -> ndarray:
    """The positions (L,) of the bases of a region in its record, in the order of its strand."""
    return region.joined(
        lambda _, start, end, strand: np.arange(start, end)[:: -1 if strand == "-" else 1]
    )


def library(module: str = "modiscolite.tfmodisco") -> ModuleType:
    """A module of the extra; raises ValueError if it is not installed."""
    return optional_package(module, "discover: TF-MoDISco", "explain")


def discover(
    one_hot: ndarray, hypothetical: ndarray, known: Mapping[str, ndarray]
) -> list[JsonDict]:
    """The motifs of sequences (N, L, 4), with what each base would contribute at each position.

    A site has a window of 15 bases with large contributions (false discovery rate .2), and motifs
    are cut to the positions with .3 of the largest contribution. The same input gives the same
    motifs.

    Returns:
        For each motif `name` (positive_1 and so on: its sites raise the prediction), `consensus`
        (lower case below one half), `matrix` (W, 4) of frequencies, `contribution` (W, 4), their
        mean, and `sites`, each the number of the sequence, start and end in it, and its strand; on
        strand - it has the reverse complement of the motif. With `known` motifs (W, 4) also the
        most similar one, `match`, with `match_strand` and `E`, the p-value of the similarity times
        the number of known motifs.
    """
    patterns: dict[str, Any] = {}
    modisco = library()
    # It raises these for too few bases, or where no contribution has one of the signs.
    with suppress(ValueError, IndexError), phase("finding motifs"):
        both = modisco.TFMoDISco(
            one_hot.astype(np.float32),
            hypothetical.astype(np.float32),
            sliding_window_size=WINDOW,
            flank_size=FLANK,
            n_leiden_runs=_RUNS,
            trim_to_window_size=20,
            min_num_to_trim_to=20,
            initial_flank_to_add=5,
        )
        for sign, found in zip(("positive", "negative"), both):
            patterns |= {f"{sign}_{number}": each for number, each in enumerate(found or (), 1)}
    motifs = list[JsonDict]()
    for name, pattern in patterns.items():
        weight = np.abs(pattern.contrib_scores).sum(1)
        kept = np.flatnonzero(weight >= _TRIM * weight.max())
        low, high = int(kept[0]), int(kept[-1]) + 1
        matrix, contribution = (x[low:high] for x in (pattern.sequence, pattern.contrib_scores))
        sites = []
        for each in pattern.seqlets:
            start = int(each.end - high if each.is_revcomp else each.start + low)
            strand = "-" if each.is_revcomp else "+"
            sites.append([int(each.example_idx), start, start + high - low, strand])
        letters = zip(matrix.argmax(1), matrix.max(1))
        motifs.append(
            {
                "name": name,
                "consensus": "".join(("ACGT" if p >= 0.5 else "acgt")[i] for i, p in letters),
                "sites": sorted(sites),
                "matrix": matrix.round(4).tolist(),
                "contribution": contribution.round(6).tolist(),
            }
        )
    if not motifs:
        log.warning(
            f"no motif found in {len(one_hot):,} sequences; TF-MoDISco needs {WINDOW + 2 * FLANK} "
            f"bases or more, and at least {MIN_SITES} sites with large contributions"
        )
    elif known:
        _match(motifs, known)
    return motifs


def _match(motifs: Sequence[JsonDict], known: Mapping[str, ndarray]) -> None:
    """Add the most similar known motif to each."""
    given = [np.array(each["matrix"]).T for each in motifs]
    with warnings.catch_warnings():  # p-values of few known motifs: docs/explaining.md
        warnings.simplefilter("ignore")
        p, _, _, _, strand = library("memelite").tomtom(given, [x.T for x in known.values()])
    for each, i, of_known, strands in zip(motifs, p.argmin(1), p, strand):
        each |= {
            "match": list(known)[i],
            "match_strand": "-" if strands[i] else "+",
            "E": float(of_known[i] * len(known)),
        }


def write_sites(path: Path, motifs: Sequence[JsonDict], regions: Sequence[Region]) -> None:
    """Write the sites of motifs in sequences at these places of a genome as BED: chrom, start, end,
    name of the motif, 0 and strand, in the order of the motifs."""
    lines = []
    for motif in motifs:
        for sequence, start, end, strand in motif["sites"]:
            part = regions[sequence].part(start, end)
            turned = "+-"[(strand == "-") ^ (part.strand == "-")]
            lines.append(f"{part.chrom}\t{part.start}\t{part.end}\t{motif['name']}\t0\t{turned}\n")
    write_bytes(path, "".join(lines).encode())


class Explainer(Protocol):
    """What computes effects.

    Attributes:
        unit: of the effects.
        calls: predictions for each base.
        settings: everything that the effects depend on besides the sequences.
    """

    unit: str
    calls: int
    settings: JsonMap

    def __call__(self, ids: ndarray, region: Region, columns: Any) -> tuple[ndarray, float]:
        """The effects (L, 4) of A, C, G and T at each position of a sequence, and the prediction
        for itself. They are 0 for the base that is there, and NaN at other letters.

        Args:
            ids: its tokens (L,).
            region: where it is in the genome.
            columns: of an alignment, (L, CHANNELS), or None.
        """


class Mutagenesis(Explainer):
    """The change of a prediction by each substitution, averaged over the networks of `predict`:
    every sequence with one other base is predicted as a whole."""

    def __init__(
        self, predict: Predict, unit: str = "", networks: int = 1, settings: JsonMap | None = None
    ) -> None:
        self.predict = predict
        self.unit = unit
        self.calls = 3 * networks
        self.settings = settings or {}

    def __call__(self, ids: ndarray, region: Any = None, columns: Any = None) -> Any:
        own = one_hot(ids)
        effects = np.where(own, 0.0, np.nan)
        position, base = (own.any(1, keepdims=True) & ~own).nonzero()
        predicted = self._predicted(ids[None], columns)
        size = max(_TOGETHER // len(ids), 1)
        for first in range(0, len(position), size):
            at = position[first : first + size], base[first : first + size]
            copies = np.repeat(ids[None], len(at[0]), 0)
            copies[np.arange(len(copies)), at[0]] = FIRST_BASE + at[1]
            effects[at] = self._predicted(copies, columns) - predicted
        return effects, float(predicted[0])

    def _predicted(self, rows: ndarray, columns: Any) -> ndarray:
        """Predictions (S,) of sequences (S, L) with the same columns."""
        of_rows = None if columns is None else [columns] * len(rows)
        return self.predict(list(rows), of_rows).mean(0)


class MaskedBases(Explainer):
    """Of a pretrained model, log p(base) - log p(base of the sequence) at each position given all
    others, as the mean over both strands, and the mean log p of the bases of the sequence.

    Args:
        source: has the genome of the sequences; positions are in the middle of the model's window.
    """

    unit = "log p of a base given all others (nats)"

    def __init__(self, model: Loaded, source: SequenceInput, batch_size: int) -> None:
        denoiser, window, columns = model.denoiser, model.window(None), source.alignment
        self.network = Network(
            denoiser, model.process, source.genome, window, batch_size, alignment=columns
        )
        self.calls = len(self.network.strands)
        device = self.network.device.type
        self.settings = {"model": identity(denoiser), "window": window, "device": device}

    def __call__(self, ids: ndarray, region: Region, columns: Any = None) -> tuple[ndarray, float]:
        effects = np.full((len(ids), 4), np.nan)
        place = np.flatnonzero(one_hot(ids).any(1))
        if not len(place):
            return effects, np.nan
        sites = [(region.chrom, each) for each in positions(region)[place].tolist()]
        log_probs = self.network.site_predictions(sites).at(sites).mean(0)  # (S, 4)
        if region.strand == "-":
            log_probs = log_probs[:, ::-1]  # of the complements
        own = log_probs[np.arange(len(place)), ids[place] - FIRST_BASE]
        effects[place] = log_probs - own[:, None]
        return effects, float(own.mean())


@dataclass(eq=False)
class ExplainJob(ResumableJob):
    """The effects of all substitutions in each sequence of an input. Items are sequences. Until the
    file is complete, its effects are in a file of 16 bytes per base next to it.

    The file has `effects`, `hypothetical` (N, L, 4) float32 and `one_hot` (N, L, 4), with zeros
    after the `lengths` (N,) of the sequences; `predicted` (N,); and name, chrom, start, end
    (0-based, half-open) and strand. Two files next to it have the arrays of TF-MoDISco's command
    line, (N, 4, L).

    Args:
        per_base: a track of the contributions; None: none.
        known: motifs (W, 4) with which those are compared that are found; None: finds none.
        settings: what was asked for, as it is recorded.
    """

    stream = "effects"
    label = "explain"
    items = "sequences"
    converts = True
    explainer: Explainer
    source: SequenceInput
    output: Path
    per_base: Path | None
    known: Mapping[str, ndarray] | None
    settings: JsonMap

    def __post_init__(self) -> None:
        super().__init__()
        self.settings = {**self.explainer.settings, **self.source.identity, **self.settings}
        endings = ["sequences.npz", "attributions.npz"]
        if self.known is not None:
            library()  # refuses now if it is not installed
            endings.append("motifs.bed")
        stem = self.output.name.removesuffix(".npz")
        self.side_files = [self.output.with_name(f"{stem}.{ending}") for ending in endings]
        self.side_files += [] if self.per_base is None else [self.per_base]

    @property
    def collected(self) -> Path:
        return self.output.with_name(f".{self.output.name}.values")

    def starts(self) -> list[int]:
        return list(range(len(self.source.names) + 1))

    def begin(self) -> None:
        bases = sum(self.source.lengths)
        calls = self.explainer.calls
        log.info(
            f"explain: {len(self.source.names):,} sequences, {calls} x {bases:,} bases = "
            f"{calls * bases:,} predictions; effects are on {self.explainer.unit}"
        )

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        whole = self.source.whole()[start + skip :]
        for piece, ids in zip(whole, self.source.windows(whole)):
            columns = self.source.columns([piece])
            of_piece = None if columns is None else columns[0].numpy()
            found = self.explainer(ids, self.source.regions[piece.record], of_piece)
            self.report(1, len(ids))
            yield Result(1, np.append(*found).astype("<f4").tobytes())

    def convert(self, collected: Path) -> None:
        lengths = np.array(self.source.lengths)
        values = np.fromfile(collected, "<f4")
        ends = np.cumsum(4 * lengths + 1)
        effects = np.zeros((len(lengths), lengths.max(), 4), np.float32)
        bases = np.zeros(effects.shape, np.int8)
        for i, ids in enumerate(self.source.windows(self.source.whole())):
            bases[i, : len(ids)] = one_hot(ids)
            effects[i, : len(ids)] = values[: ends[i] - 1][-4 * len(ids) :].reshape(-1, 4)
        arrays = {
            "effects": effects,
            "hypothetical": hypothetical(effects),
            "one_hot": bases,
            "lengths": lengths,
            "predicted": values[ends - 1],
            "name": np.array(self.source.names),
        }
        for key in ("chrom", "start", "end", "strand"):
            arrays[key] = np.array([getattr(region, key) for region in self.source.regions])
        write_npz(self.output, arrays)

    def finish(self, collected: Path) -> JsonDict:
        found = read_npz(self.output)
        for path, key in zip(self.side_files, ("one_hot", "hypothetical")):
            write_npz(path, {"arr_0": found[key].transpose(0, 2, 1).astype(np.float32)})
        if self.per_base is not None:
            write_track(self.per_base, self.source.genome.lengths, self._along(found))
        content: JsonDict = {
            "sequences": len(found["name"]),
            "bases": int(found["lengths"].sum()),
            "mean_prediction": float(np.nanmean(found["predicted"])),
            "unit": self.explainer.unit,
        }
        if self.known is not None:
            content["motifs"] = discover(found["one_hot"], found["hypothetical"], self.known)
            write_sites(self.side_files[2], content["motifs"], self.source.regions)
        return content

    def _along(
        self, found: dict[str, ndarray]
    ) -> Iterator[tuple[str, Iterator[tuple[int, int, float]]]]:
        """The contributions along each record; where sequences overlap, their mean."""
        of_record: dict[str, list[ndarray]] = {}
        contributions = (found["hypothetical"] * found["one_hot"]).sum(-1)
        for region, values, bases in zip(self.source.regions, contributions, found["one_hot"]):
            known = np.flatnonzero(bases.any(1))
            pairs = np.stack([positions(region)[known], values[known]], 1)
            of_record.setdefault(region.chrom, []).append(pairs)
        for record in self.source.genome.lengths:
            if record in of_record:
                place, value = np.concatenate(of_record[record]).T
                yield record, mean_coverage(place.astype(int), place.astype(int) + 1, value)
