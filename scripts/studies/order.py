"""Draw the order of a model of objective=learned_order on held-out windows.

    python scripts/studies/order.py RUN [--output order.svg] [--batches 16]

The first panel has the mean place of each position in the order, between 0 and 1; the second one
that of each token, of the most frequent ones; the third one which neighbors of a token are visible
when it is unmasked, beside the shares of random order. Orders are drawn from q, which reads the
windows.
"""

import argparse
from itertools import islice
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.progress import table
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import build_objective

NEIGHBORS = {"none": 1 / 3, "left": 1 / 6, "right": 1 / 6, "both": 1 / 3}  # of random order
TOKENS = 12


@torch.no_grad()
def orders(run: str, batches: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """The place of each position (S, L) in an order drawn for its window, nan if it is not counted;
    the mean places of the most frequent tokens; the shares of `NEIGHBORS`; these tokens."""
    loaded = checkpoint.load(run)
    objective = build_objective(loaded.config, loaded.process)
    places = []
    ids = []
    for step, batch in enumerate(islice(loaded.training_data().val_dataloader(), batches)):
        x0 = batch["ids"].long()
        draws = Draws.for_batch(0, len(batch["ids"]), step)
        given = TrainingBatch(x0, batch["weight"].float(), draws, None, batch.get("valid"))
        place = objective.draw_prefix(loaded.denoiser, given, torch.zeros(len(x0)))
        share = place.rank / (place.num_counted - 1).clamp(min=1)
        places.append(torch.where(place.counted, share, torch.nan).numpy())
        ids.append(x0.numpy())
    found = np.concatenate(places)
    tokens = np.concatenate(ids)
    counted = np.isfinite(found)
    names, counts = np.unique(tokens[counted], return_counts=True)
    names = names[np.argsort(-counts)][:TOKENS]
    of_tokens = np.array([found[counted & (tokens == name)].mean() for name in names])
    left, right = (found[:, 1:-1] > found[:, each] for each in (slice(None, -2), slice(2, None)))
    inner = counted[:, 1:-1] & counted[:, :-2] & counted[:, 2:]
    kind = np.bincount((left + 2 * right)[inner], minlength=4) / inner.sum()
    return found, of_tokens, kind, [loaded.tokenizer.decode(np.array([name])) for name in names]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--output", type=Path, default=Path("order.svg"))
    parser.add_argument("--batches", type=int, default=16)
    args = parser.parse_args(arguments)
    matplotlib.use("svg")
    found, of_tokens, kind, names = orders(args.run, args.batches)
    figure = Figure((11, 3), layout="constrained")
    position, token, neighbor = figure.subplots(1, 3)
    position.plot(np.nanmean(found, 0))
    position.set(xlabel="position", ylabel="mean place in the order", ylim=(0, 1))
    order = np.argsort(of_tokens)
    token.barh([repr(names[i])[1:-1] for i in order], of_tokens[order])
    token.set(xlabel="mean place of the token", xlim=(0, 1))
    rows = [(name, share, NEIGHBORS[name]) for name, share in zip(NEIGHBORS, kind, strict=True)]
    at = np.arange(len(rows))
    for shift, column, label in ((-0.2, 1, "this model"), (0.2, 2, "random order")):
        neighbor.bar(at + shift, [row[column] for row in rows], 0.4, label=label)
    neighbor.set(xticks=at, xticklabels=list(NEIGHBORS), ylabel="share")
    neighbor.set_xlabel("visible neighbors of the next token")
    neighbor.legend()
    figure.savefig(args.output)
    shown = [(name, f"{share:.3f}", f"{random:.3f}") for name, share, random in rows]
    print(table(shown, ("visible neighbors", "share", "in random order")))


if __name__ == "__main__":
    main()
