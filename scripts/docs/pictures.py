"""The pictures of docs/concepts.md, made with the bundled model of E. coli, of docs/objectives.md
and of docs/samplers.md.

python scripts/docs/pictures.py [FOLDER]      # default: docs
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.hybrid import HybridProcess
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess, Process, UniformProcess
from dnadiff.diffusion.sampler.base import Sampler
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.reverse import Reverse
from dnadiff.diffusion.sampler.self_correction import SelfCorrection
from dnadiff.diffusion.token_masking import Spindle
from dnadiff.model import Model

START, LENGTH = 4_000_000, 512  # a held-out window
GAP, FLANK = 30, 4  # hidden bases in its middle, and the bases drawn on either side of them
SHOWN = 36  # bases of the first picture
ROWS = (
    0.0,
    0.25,
    0.5,
    0.75,
    1.0,
)  # masked fractions of the first picture; revealed fractions of the second
LETTERS = "ACGT"
COLORS = {"A": "#1b9e77", "C": "#3b6fb6", "G": "#d99000", "T": "#c0392b"}
GRAY = "#8a8f98"
WIDTH = 0.1  # inches of a base: the pictures are as wide as a phone
INK = "#30343b"
SENTENCE = "All happy families are alike"
TIMES = (0.25, 0.5)
DRAWS = Draws.for_batch(219, 1)
TOKENIZER = DNATokenizer()
VOCAB = TOKENIZER.vocab
NOISE = LogLinear()
WANTED, GIVEN = (
    torch.from_numpy(TOKENIZER.encode(text).astype(np.int64))
    for text in ("ACGTTGACCATGAT", "ACGATGACCTTGCT")  # what the model expects; what is edited
)
CELL, LINE, PANEL = 14, 17, (236, 156)  # pixels of the picture of samplers
MASKS = AbsorbingProcess(VOCAB, NOISE)
UNIFORM = UniformProcess(VOCAB, NOISE)
# title, sampler, process, and the time of the noise on what is edited; None begins with noise
PANELS: list[tuple[str, Sampler, Process, float | None]] = [
    ("masks: sampler=grouped", Grouped(5), MASKS, None),
    ("masks: start= start_t=0.4", Grouped(3), MASKS, 0.4),
    ("uniform: sampler=reverse", Reverse(5), UNIFORM, None),
    ("uniform: start= start_t=0.4", Reverse(5), UNIFORM, 0.4),
    ("hybrid: sampler=reverse", Reverse(5), HybridProcess(VOCAB, NOISE, 0.4), None),
    ("uniform: self_correction", SelfCorrection(Reverse(1)), UNIFORM, 0),
]


def main(folder: Path) -> None:
    """Draw the pictures."""
    (folder / "samplers.svg").write_text(sampling() + "\n", encoding="utf-8")
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "dnadiff", "svg.fonttype": "path", "font.family": "DejaVu Sans"}
    )
    model = dnadiff.load("ecoli")
    genome = Genome(model.config["data"]["path"])
    x0 = torch.from_numpy(genome.window(genome.names[0], START, START + LENGTH).astype(np.int64))[
        None
    ]
    save(masking(model, x0[0, :SHOWN]), folder / "masking.svg")
    save(unmasking(model, x0), folder / "unmasking.svg")
    save(corruption(), folder / "corruption.svg")


def masking(model: Model, x0: Tensor) -> Figure:
    """One sequence at five times; a base that is masked at one time is masked at all later ones."""
    figure, axes = rows(SHOWN, [f"t = {t:g}" for t in ROWS])
    ranks = np.random.default_rng(0).permutation(SHOWN)
    for axis, t in zip(axes, ROWS):
        for place, letter in enumerate(model.tokenizer.decode(x0)):
            if ranks[place] < round(t * SHOWN):
                hide(axis, place)
            else:
                write(axis, place, letter)
    return figure


def unmasking(model: Model, x0: Tensor) -> Figure:
    """Predictions for the hidden bases of a gap, while its bases are drawn one at a time in random
    order."""
    first = (LENGTH - GAP) // 2
    emitted = list(model.process.vocab.emitted)
    mask_id = model.process.vocab.mask_id
    xt = x0.clone()
    xt[:, first : first + GAP] = mask_id
    rng = np.random.default_rng(1)
    order = np.random.default_rng(0).permutation(GAP) + first
    shown = [round(share * GAP) for share in ROWS]
    figure, axes = rows(GAP + 2 * FLANK, [f"{number} unmasked" for number in shown])
    for revealed in range(GAP + 1):
        with torch.no_grad():
            log_probs = model.denoiser.log_probs(
                xt, torch.full((1,), float((xt == mask_id).double().mean()))
            )
        probs = log_probs[0, :, emitted].double().exp().numpy()
        if revealed in shown:
            axis = axes[shown.index(revealed)]
            for column, place in enumerate(range(first - FLANK, first + GAP + FLANK)):
                if xt[0, place] != mask_id:
                    inside = first <= place < first + GAP
                    write(
                        axis,
                        column,
                        model.tokenizer.decode(xt[0, place : place + 1]),
                        "bold" if inside else "normal",
                    )
                    continue
                bottom = 0.02
                for letter, p in zip(LETTERS, probs[place] / probs[place].sum()):
                    axis.add_patch(
                        Rectangle(
                            (column + 0.06, bottom),
                            0.88,
                            0.96 * p,
                            color=COLORS[letter],
                            linewidth=0,
                        )
                    )
                    bottom += 0.96 * p
        if revealed < GAP:
            p = probs[order[revealed]]
            xt[0, order[revealed]] = emitted[rng.choice(4, p=p / p.sum())]
    return figure


def corruption() -> Figure:
    """A sentence under each kind of noise at two times, with the same random numbers: masks are
    gray, random characters are red."""
    tokenizer = CharTokenizer(SENTENCE)
    vocab = tokenizer.vocab
    noise = LogLinear()
    x0 = torch.from_numpy(tokenizer.encode(SENTENCE).astype(np.int64))[None]
    spindle = Spindle(vocab, noise, strength=0.318)
    spindle.observe(lambda: torch.bincount(x0[0], minlength=vocab.size))
    processes = {
        "absorbing": AbsorbingProcess(vocab, noise),
        "uniform": UniformProcess(vocab, noise),
        "hybrid": HybridProcess(vocab, noise, p_uniform=0.4),
        "spindle": spindle,
    }
    titles = ["t = 0", *(f"{name}, t = {t:g}" for name in processes for t in TIMES)]
    figure, (first, *others) = rows(len(SENTENCE), titles, margin=1.5)
    states = [
        p.corrupt(x0, torch.tensor([t]), x0 >= 0, DRAWS) for p in processes.values() for t in TIMES
    ]
    for axis, xt in zip([first, *others], [x0, *states]):
        for place, (letter, now) in enumerate(zip(SENTENCE, xt[0].tolist())):
            if now == vocab.mask_id:
                hide(axis, place)
            else:
                shown = tokenizer.decode(np.array([now]))
                write(axis, place, shown, color=INK if shown == letter else COLORS["T"])
    return figure


def hide(axis: Axes, place: int) -> None:
    """One mask."""
    axis.add_patch(Rectangle((place + 0.04, 0.04), 0.92, 0.92, color=GRAY, alpha=0.35, linewidth=0))


class Certain(MaskedDenoiser):
    """Expects one sequence, each letter with the probability 0.94, and keeps what it reads."""

    def __init__(self, process: Process) -> None:
        super().__init__(VOCAB)
        self.process_type = type(process)
        self.time_conditioning = True
        wanted = torch.nn.functional.one_hot(WANTED, VOCAB.size)
        self.expected = (0.02 * VOCAB.is_emitted() + 0.92 * wanted).log()
        self.read: list[Tensor] = []

    def log_probs(self, *query: Tensor, **named: Tensor) -> Tensor:
        self.read.append(query[0][0])
        return self.expected[query[3][0]]


def sampling() -> str:
    """What the network reads in each call of six samplers, and the result, as SVG."""
    drawn = []
    for number, (title, sampler, process, start_t) in enumerate(PANELS):
        model = Certain(process)
        x = GIVEN[None] if start_t == 0 else torch.full((1, len(GIVEN)), VOCAB.mask_id)
        start = (GIVEN[None], start_t) if start_t else (None, 1.0)
        samples = sampler.sample(model, process, x, Draws.for_batch(4, 1), None, None, None, *start)
        states = [GIVEN] * bool(start_t) + [*model.read, samples.tokens[0]]
        left = number % 2 * PANEL[0] + 14
        top = number // 2 * PANEL[1] + 26
        drawn.append(f'<text x="{left}" y="{top - 4}" font-weight="600">{title}</text>')
        for y, state in enumerate(states):
            for place, token in enumerate(state):
                at = f'x="{left + place * CELL}" y="{top + y * LINE + 13}"'
                if token == VOCAB.mask_id:
                    drawn.append(f'<text {at} fill="#b8bcc4">■</text>')
                else:
                    color = INK if token == samples.tokens[0, place] else COLORS["T"]
                    letter = TOKENIZER.decode(state[place : place + 1])
                    drawn.append(f'<text {at} fill="{color}">{letter}</text>')
    width, height = 2 * PANEL[0], 3 * PANEL[1]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="13" '
    back = 'font-family="ui-monospace, monospace"><rect width="100%" height="100%" fill="#fff"/>'
    return "".join([head, back, *drawn, "</svg>"])


def rows(columns: int, titles: list[str], margin: float = 1.1) -> tuple[Figure, list[Axes]]:
    """A figure with one row of bases for each title."""
    figure = Figure(figsize=(margin + WIDTH * columns, 0.2 * len(titles)))
    axes = []
    for number, title in enumerate(titles):
        left = margin / figure.get_figwidth()
        height = 1 / len(titles)
        axis = figure.add_axes((left, 1 - (number + 0.9) * height, 1 - left, 0.8 * height))
        axis.set(xlim=(0, columns), ylim=(0, 1))
        axis.set_axis_off()
        axis.text(-0.6, 0.5, title, ha="right", va="center", fontsize=8, color=GRAY)
        axes.append(axis)
    return figure, axes


def write(
    axis: Axes, place: int, letter: str, weight: str = "normal", color: str | None = None
) -> None:
    """One base or character."""
    axis.text(
        place + 0.5,
        0.47,
        letter,
        ha="center",
        va="center",
        fontsize=8,
        color=color or COLORS[letter],
        weight=weight,
    )


def save(figure: Figure, path: Path) -> None:
    """Write an SVG file without the date, so that the same picture has the same bytes."""
    figure.savefig(path, transparent=True, metadata={"Date": None})
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs")
