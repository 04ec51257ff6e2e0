"""What designs are optimized for: the interface of rewards, the checks on what a reward returns,
and rewards for composition, motifs, restriction sites, a target value and weighted sums.

The prediction of a fine-tuned model is `dnadiff.design.predicted`."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from dnadiff.design.request import FREE, codes_of
from dnadiff.diffusion.sampler.base import Configurable
from dnadiff.fields import Fraction, PositiveInt, as_list, checked, checked_dataclass
from dnadiff.formats.motifs import log_odds, read_jaspar
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.store.address import shown
from dnadiff.store.disk import hash_file
from dnadiff.store.files import resolve

Values: TypeAlias = ndarray  # (S,) float64
_SHOWN = 40  # letters of a sequence in an error
_TOLERANCE = 1e-4  # of a value that must not depend on the batch
_BASES = "ACGT"


class Reward(Configurable, ABC):
    """A number for each sequence; larger is better. It must be a function of the sequence alone,
    not of the others in a call.

    Attributes:
        has_gradient: whether it is a differentiable function of the one-hot sequence.
        unit: what a value is, in words; empty if that is not known.
    """

    has_gradient = False
    unit = ""

    @abstractmethod
    def __call__(self, sequences: Sequence[str]) -> Values:
        """The rewards (S,) of S sequences; DNA in upper case."""

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        """Rewards (S,) of sequences of one length, and their gradients with respect to the one-hot
        sequences, (S, L, 4) for A, C, G, T.

        Raises:
            ValueError: if it has no gradient.
        """
        raise ValueError(
            f"reward {type(self).__name__} has no gradient; choose another reward, or a method "
            "that needs none"
        )

    def check_length(self, length: int) -> None:
        """Raise ValueError if it does not take sequences of `length` bases; called before anything
        is sampled."""

    def inputs(self) -> dict[str, str]:
        """The SHA-256 of each file that the values depend on, by its path."""
        return {}


class FunctionReward(Reward):
    """A Python function of a list of strings that returns one number for each."""

    def __init__(self, function: Callable[[Sequence[str]], ArrayLike]) -> None:
        self.function = function

    def __call__(self, sequences: Sequence[str]) -> Values:
        return np.asarray(self.function(sequences), dtype=np.float64)


class _Combined(Reward):
    """A function of the values of other rewards."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self._rewards = rewards
        self.has_gradient = all(reward.has_gradient for reward in rewards)

    def check_length(self, length: int) -> None:
        for reward in self._rewards:
            reward.check_length(length)

    def inputs(self) -> dict[str, str]:
        return {path: x for reward in self._rewards for path, x in reward.inputs().items()}


class Toward(_Combined):
    """Minus the distance |reward - target|: the best sequences have a reward equal to the target.

    Args:
        reward: the reward that is to approach the target.
        target: in its unit.
    """

    def __init__(self, reward: Reward, target: float) -> None:
        super().__init__([reward])
        self.reward = reward
        self.target = target
        self.unit = f"minus the distance of the {reward.unit or 'reward'} from {target:g}"

    def __call__(self, sequences: Sequence[str]) -> Values:
        return 0 - np.abs(self.reward(sequences) - self.target)  # not -0

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        value, slope = self.reward.gradient(sequences)
        return 0 - np.abs(value - self.target), -np.sign(value - self.target)[:, None, None] * slope


@checked
class WeightedSum(_Combined):
    """The sum of weight times reward over named terms. With the weights 1 and -1 it is a
    difference, as for activity in one cell type.

    Args:
        terms: rewards by name.
        weights: of each term, by name; missing ones are 1.

    Raises:
        ValueError: if there is no term, or a weight without a term.
    """

    def __init__(
        self, terms: Mapping[str, Reward], weights: Mapping[str, float] | None = None
    ) -> None:
        self.terms = dict(terms)
        self.weights = dict(weights or {})
        if not self.terms or not all(isinstance(term, Reward) for term in self.terms.values()):
            raise ValueError(
                "reward.terms are rewards by name, such as {promoter: {_target_: ...}}; give at "
                "least one"
            )
        for name in self.weights:
            if name not in self.terms:
                raise ValueError(
                    f"reward.weights.{name} has no term; the terms are {', '.join(self.terms)}"
                )
        super().__init__(list(self.terms.values()))
        self._factors = [self.weights.get(name, 1.0) for name in self.terms]

    def __call__(self, sequences: Sequence[str]) -> Values:
        return self._sum(reward(sequences) for reward in self._rewards)

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        values, slopes = zip(*(reward.gradient(sequences) for reward in self._rewards))
        return self._sum(values), self._sum(slopes)

    def _sum(self, of_terms: Iterable[ndarray]) -> ndarray:
        return np.sum([factor * one for factor, one in zip(self._factors, of_terms)], axis=0)


def as_reward(
    reward: Reward | Callable[[Sequence[str]], ArrayLike], target: float | None = None
) -> Reward:
    """A reward from a reward or a function, with the target value if there is one."""
    made = reward if isinstance(reward, Reward) else FunctionReward(reward)
    return made if target is None else Toward(made, target)


class CountedReward:
    """A reward with checks on what it returns, and the number of its calls.

    Attributes:
        calls: sequences that were evaluated so far; a gradient counts twice. Evaluations for the
            checks are not counted.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.calls = 0
        self._is_checked = self._is_gradient_checked = False
        # Rewards of the first calls, until there are two sequences to check.
        self._known: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The name of the reward in messages."""
        made = self.reward.reward if isinstance(self.reward, Toward) else self.reward
        named = made.function if isinstance(made, FunctionReward) else type(made)
        return getattr(named, "__name__", type(named).__name__)

    def __call__(self, sequences: Sequence[str]) -> Values:
        """The rewards (S,) of S sequences.

        Raises:
            ValueError: if the reward raises an error, returns another number of values, values that
                are not finite, or values that depend on the other sequences of the call.
        """
        values, _ = self._called(sequences)
        if not self._is_checked:
            self._check_independence(sequences, values)
        self.calls += len(sequences)
        return values

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        """See `Reward.gradient`; raises ValueError as `__call__`."""
        values, slopes = self._called(sequences, True)
        shape = (len(sequences), len(sequences[0]), 4)
        if slopes.shape != shape:
            raise ValueError(
                f"reward {self.name} returned a gradient of shape {slopes.shape}, not {shape}: "
                "sequences, positions and bases"
            )
        if not np.isfinite(slopes).all():
            raise ValueError(
                f"reward {self.name} has a gradient that is not finite; choose a method that needs "
                "none"
            )
        if not self._is_gradient_checked:
            self._check_same(sequences[0], values[0], self._called(sequences[:1])[0][0])
            self._is_gradient_checked = True
        self.calls += 2 * len(sequences)
        return values, slopes

    def _called(self, sequences: Sequence[str], gradient: bool = False) -> tuple[Values, Values]:
        """Finite rewards (S,), and their gradient if it is asked for."""
        given = list(sequences)
        try:
            found = self.reward.gradient(given) if gradient else (self.reward(given), np.empty(0))
            values = np.asarray(found[0], np.float64)
        except Exception as error:
            raise ValueError(
                f"reward {self.name} failed for {_short(sequences[0])}: {type(error).__name__}: "
                f"{error}"
            ) from error
        if values.shape != (len(sequences),):
            raise ValueError(
                f"reward {self.name} returned an array of shape {values.shape} for "
                f"{len(sequences)} sequences; return one number for each"
            )
        if len(wrong := np.flatnonzero(~np.isfinite(values))):
            raise ValueError(
                f"reward {self.name} is {values[wrong[0]]} for {_short(sequences[wrong[0]])}; "
                "return finite numbers only"
            )
        return values, found[1]

    def _check_independence(self, sequences: Sequence[str], values: Values) -> None:
        # Once: the first sequence by itself, and all in the reverse order, which is repeated as
        # soon as a different sequence arrives.
        if not self._known:
            self._check_same(sequences[0], values[0], self._called(sequences[:1])[0][0])
        self._known |= dict(zip(sequences, values.tolist()))
        if len(self._known) > 1:
            again = list(reversed(self._known))
            for sequence, other in zip(again, self._called(again)[0]):
                self._check_same(sequence, self._known[sequence], other)
            self._is_checked = True

    def _check_same(self, sequence: str, value: float, other: float) -> None:
        if abs(value - other) > _TOLERANCE * max(1.0, abs(value)):
            raise ValueError(
                f"reward {self.name} returned {value:g} and then {other:g} for {_short(sequence)}; "
                "it must be a function of the sequence, without "
                "random numbers and without normalization over the sequences of a call"
            )


def _short(sequence: str) -> str:
    if len(sequence) <= _SHOWN:
        return sequence
    return f"{sequence[:_SHOWN]}... ({len(sequence)} letters)"


class GCContent(Reward):
    """The fraction of G and C among the bases of a sequence that are known to be G or C or neither,
    from 0 to 1; 0 for a sequence without any.

    Examples:
        >>> float(GCContent()(["GATC"])[0])
        0.5
    """

    has_gradient = True
    unit = "fraction of G and C"

    def __call__(self, sequences: Sequence[str]) -> Values:
        from Bio.SeqUtils import gc_fraction

        return np.array([gc_fraction(text) for text in sequences], np.float64)

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        known = np.array([[base in _BASES for base in text] for text in sequences])
        slope = known / np.maximum(known.sum(-1, keepdims=True), 1)
        return self(sequences), slope[..., None] * np.array([0.0, 1.0, 1.0, 0.0])


@checked_dataclass
class Homopolymer(Reward):
    """Minus the number of bases by which the longest run of one base exceeds `longest`; 0 if none
    does.

    Args:
        longest: allowed length of a run.

    Examples:
        >>> Homopolymer(longest=3)(["ACGT", "AAAAAC"]).tolist()
        [0.0, -2.0]
    """

    longest: PositiveInt = 6

    def __call__(self, sequences: Sequence[str]) -> Values:
        runs = (re.findall("A+|C+|G+|T+", text) for text in sequences)
        longest = [max(map(len, found), default=0) for found in runs]
        return np.minimum(self.longest - np.array(longest, dtype=np.float64), 0.0)


@checked
class MotifMatch(Reward):
    """The best match of a motif in a sequence, at any position.

    For IUPAC letters it is the fraction of the letters that match, N not counted. For a matrix it
    is the log-odds score against equal base frequencies, relative to the highest possible one: 1 is
    the consensus, 0 a site that is as probable under the motif as under equal base frequencies. A
    sequence shorter than the motif has the lowest possible score.

    Args:
        motif: IUPAC letters, such as TATAAT or RCGTG.
        matrix: a file of position frequency matrices in JASPAR format, instead of `motif`; may be
            gzip-compressed.
        name: the identifier or the name of the matrix; None takes the only one of the file.
        both_strands: also search the reverse complement.
        absent: reward the absence: minus the excess of the best match above `threshold`.
        threshold: with `absent`, relative scores up to it cost nothing.

    Raises:
        ValueError: if the motif or the file cannot be read, or the file has no such matrix.
    """

    def __init__(
        self,
        motif: str | None = None,
        matrix: str | None = None,
        name: str | None = None,
        both_strands: bool = True,
        absent: bool = False,
        threshold: Fraction = 0.8,
    ) -> None:
        if (motif is None) == (matrix is None):
            raise ValueError(
                "reward.motif is for IUPAC letters and reward.matrix for a file in JASPAR format; "
                "set one of them"
            )
        self.motif = motif
        self.matrix = matrix
        self.name = name
        self.both_strands = both_strands
        self.absent = absent
        self.threshold = threshold
        self.unit = "" if absent else f"match of {motif or name or 'the motif'}"
        self._scores = (
            log_odds(read_jaspar(str(matrix), name)) if motif is None else letter_matches(motif)
        )  # (W, 4)
        if self._scores.max(-1).sum() <= 0:
            raise ValueError(
                f"reward.matrix {matrix}: no position of the matrix prefers a base; choose "
                "another one"
            )

    def inputs(self) -> dict[str, str]:
        return {} if self.matrix is None else {shown(self.matrix): hash_file(resolve(self.matrix))}

    def __call__(self, sequences: Sequence[str]) -> Values:
        lowest = self._scores.min(-1).sum()
        found = [self._at(sequence).max(initial=lowest) for sequence in sequences]
        best = np.array(found) / self._scores.max(-1).sum()
        return -np.maximum(best - self.threshold, 0.0) if self.absent else best

    def site(self, sequence: str) -> tuple[int, int, str]:
        """The best match in a sequence, the first of equal ones: [start, end) from 0, and its
        strand; no base of a sequence that is shorter than the motif."""
        scores = self._at(sequence)
        if not scores.size:
            return 0, 0, "+"
        strand, start = divmod(int(scores.argmax()), scores.shape[1])
        return start, start + len(self._scores), "+-"[strand]

    def _at(self, sequence: str) -> ndarray:
        """The scores (strands, starts) of a sequence."""
        lowest = self._scores.min(-1, keepdims=True)
        # Other letters than A, C, G, T have the lowest score.
        table, width = np.concatenate([self._scores, lowest], axis=1), len(lowest)  # (W, 5)
        count = max(len(sequence) - width + 1, 0)
        both = [(sequence, 1), (str(reverse_complement(sequence)), -1)]
        return np.array(
            [
                np.sum([table[at, index[at : at + count]] for at in range(width)], axis=0)[::step]
                for strand, step in both[: 1 + self.both_strands]
                for index in [_INDEX[list(strand.encode("ascii", "replace"))]]
            ]
        )


_INDEX = np.full(256, 4)
_INDEX[list(b"ACGTacgt")] = [0, 1, 2, 3] * 2


def letter_matches(motif: str) -> ndarray:
    """Scores (W, 4) of IUPAC letters: 1 for a base that a letter allows, 0 for others and for every
    base at N."""
    codes = codes_of(motif, f"reward.motif {motif!r}")
    if (codes == FREE).all():
        raise ValueError(
            f"reward.motif {motif!r} allows every sequence; give at least one letter other than N"
        )
    return np.where(codes[:, None] == FREE, 0.0, (codes[:, None] >> np.arange(4)) & 1)


class RestrictionSites(Reward):
    """Minus the number of recognition sites of restriction enzymes in a sequence, counted at each
    position on either strand.

    Args:
        enzymes: names known to Biopython, such as EcoRI, or recognition sites in IUPAC letters.

    Raises:
        ValueError: for a name that is neither.
    """

    def __init__(self, enzymes: str | Sequence[str]) -> None:
        self.enzymes = as_list(enzymes)
        if not self.enzymes:
            raise ValueError("reward.enzymes is empty; give names such as [EcoRI,BsaI]")
        sites = map(site_of, self.enzymes)
        self._sites = [(site, str(reverse_complement(site))) for site in sites]

    def __call__(self, sequences: Sequence[str]) -> Values:
        from Bio.SeqUtils import nt_search

        counts = [
            sum(
                len({i for site in both for i in nt_search(text, site)[1:]}) for both in self._sites
            )
            for text in sequences
        ]
        return -np.array(counts, dtype=np.float64)


def site_of(enzyme: str) -> str:
    """The recognition site of an enzyme in IUPAC letters; ValueError if neither its name nor its
    site is known."""
    from Bio import Restriction

    known = getattr(getattr(Restriction, enzyme, None), "site", "")
    site = known or enzyme.upper()
    if not known and (len(site) < 4 or set(site) - set("ACGTRYSWKMBDHVN")):
        raise ValueError(
            f"reward.enzymes {enzyme!r} is no enzyme that Biopython knows and no site of at least "
            "4 IUPAC letters, such as GAATTC"
        )
    return site
