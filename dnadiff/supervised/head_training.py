"""The first stage of fine-tuning: the head alone is trained, on stored features of the pretrained
network (LP-FT, arXiv 2202.10054).

The network runs once for each stored sequence instead of once for each step, and it does not adapt
to a head that is still random.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dnadiff.diffusion.draws import hash64
from dnadiff.fields import Json
from dnadiff.supervised.classifier import Classifier
from dnadiff.supervised.items import EVALUATION, ItemBatch, Report, ShuffledBatches, TaskData
from dnadiff.supervised.training import Budget, Recipe
from dnadiff.training.optim import parameter_groups

STEPS, MIN_EPOCHS, MAX_EPOCHS, PATIENCE = 1000, 4, 30, 3
LR, WARMUP, BATCH_SIZE = 1e-3, 0.1, 32
MAX_SEQUENCES, MAX_VALID = 40_000, 1000  # of which features are stored
MAX_BYTES = 2**30  # of the features of the training part, and again of the validation part
READ_SHARE, TRAIN_SHARE = 0.25, 0.3  # of what is left of a wall-clock budget
log = logging.getLogger("dnadiff")


@dataclass(frozen=True)
class StoredFeatures:
    """What the head reads of S sequences: one tensor (S, L, D) float16 for each strand that the
    network reads together.

    `valid (S, L)` is False on padding; `labels` are those of `Items`.
    """

    strands: list[Tensor]
    valid: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def outputs(self, classifier: Classifier, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, C) of the head for the sequences `rows (B,)`, and their labels."""
        rows = rows.to(self.labels.device)
        lengths = self.valid[rows].sum(1)
        longest = int(lengths.max())
        valid = None if int(lengths.min()) == longest else self.valid[rows, :longest]
        return classifier.logits(
            [one[rows, :longest].float() for one in self.strands], valid
        ), self.labels[rows]


class Clock:
    """The part of a training that is over, by its steps or by its wall-clock time."""

    def __init__(
        self, steps: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.steps, self.seconds, self.clock, self.start = steps, seconds, clock, clock()

    def progress(self, step: int) -> float:
        """From 0 to 1, which is the end; without time, the end."""
        return (
            min(1.0, max(step / self.steps, (self.clock() - self.start) / self.seconds))
            if self.seconds > 0
            else 1.0
        )


def read_features(
    classifier: Classifier,
    batches: Iterable[ItemBatch],
    number: int,
    length: int,
    seconds: float,
    report: Report,
) -> StoredFeatures:
    """The features of the first `number` sequences of at most `length` tokens; reading stops early
    after `seconds` (and one batch)."""
    end, device = time.monotonic() + seconds, next(classifier.parameters()).device
    strands: list[Tensor] = []
    valid, labels, count = torch.zeros(number, length, dtype=torch.bool, device=device), [], 0
    classifier.eval()
    for batch in batches:
        ids, mask, of_batch = batch.first(number - count).to(device)
        with torch.no_grad():
            features = classifier.read(ids, mask)
        # Small numbers, because they follow the last norm of the network: float16 holds them.
        strands = strands or [
            torch.zeros(number, length, one.shape[-1], dtype=torch.float16, device=device)
            for one in features
        ]
        rows = slice(count, count + len(of_batch))
        for stored, one in zip(strands, features):
            stored[rows, : ids.shape[1]] = one
        valid[rows, : ids.shape[1]] = True if mask is None else mask
        labels.append(of_batch)
        count += len(of_batch)
        report(0, ids.numel())
        if count == number or time.monotonic() > end:
            break
    return StoredFeatures([one[:count] for one in strands], valid[:count], torch.cat(labels))


def train_head(
    classifier: Classifier,
    data: TaskData,
    recipe: Recipe,
    seed: int,
    budget: Budget,
    report: Report,
) -> dict[str, Json]:
    """Train the head of a classifier, in place, and return what was done, empty if nothing was; the
    network stays as it is.

    The head gets the weights of the epoch with the least validation loss, which may be those it
    came with. Items are read in random order, on a random strand unless the task is stranded or the
    network reads both, and then on the other one.

    Args:
        recipe: of the training of the whole network. The head is trained with batches of 32 or, if
            that is less, four times its size, in at most `head_epochs` over the stored features;
            None is about 1,000 steps, in 4 to 30 epochs. Training stops after 3 without
            improvement.
        seed: of the order, the strands and the dropout.
        budget: reading takes at most a quarter of what is left of it (but one batch of each part),
            and training 30 % of the rest.
    """
    longest = max(
        int(items.lengths.max()) for items in (data.train, data.valid)
    )  # not of test items, which decide nothing
    width = recipe.stored_width
    if width is None:
        width = (2 if classifier.invariant else 1) * classifier.head.width
    fitting = min(MAX_SEQUENCES, MAX_BYTES // (2 * longest * width))
    if fitting < BATCH_SIZE:
        log.info(
            f"{data.name}: the head is not trained alone, because the features of only {fitting} "
            "sequences fit into memory"
        )
        return {}
    batch_size = min(BATCH_SIZE, EVALUATION * recipe.batch_size)
    train, valid = _train_and_valid(
        classifier, data, fitting, longest, batch_size, seed, READ_SHARE * budget.left, report
    )
    head, batches = classifier.head, math.ceil(len(train) / batch_size)
    epochs = recipe.head_epochs
    if epochs is None:
        epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, round(STEPS / batches)))
    steps = batches * epochs
    clock = Clock(steps, TRAIN_SHARE * budget.left)
    optimizer = torch.optim.AdamW(parameter_groups(head, recipe.weight_decay))
    best_loss, best_epoch, best_weights = (
        _valid_loss(classifier, valid, batch_size),
        0,
        copy.deepcopy(head.state_dict()),
    )
    step = epoch = 0
    while clock.progress(step) < 1 and epoch - best_epoch < PATIENCE:
        head.train()
        order = torch.Generator().manual_seed(hash64(seed, "head training", epoch) % 2**63)
        for rows in torch.randperm(len(train), generator=order).split(batch_size):
            progress = clock.progress(step)
            if progress == 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = (
                    LR
                    * min(1.0, (progress + 1 / steps) / WARMUP)
                    * 0.5
                    * (1 + math.cos(math.pi * progress))
                )
            torch.manual_seed(hash64(seed, "head dropout", step) % 2**63)
            optimizer.zero_grad()
            classifier.target.loss(*train.outputs(classifier, rows)).backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            step += 1
        epoch += 1
        loss = _valid_loss(classifier, valid, batch_size)
        if loss < best_loss:
            best_loss, best_epoch, best_weights = loss, epoch, copy.deepcopy(head.state_dict())
        report(0)
    head.load_state_dict(best_weights)
    return {
        "head_sequences": len(train),
        "head_epochs": epoch,
        "head_best_epoch": best_epoch,
        "head_valid_loss": best_loss,
    }


def _train_and_valid(
    classifier: Classifier,
    data: TaskData,
    fitting: int,
    longest: int,
    batch_size: int,
    seed: int,
    seconds: float,
    report: Report,
) -> tuple[StoredFeatures, StoredFeatures]:
    """The features of at most `fitting` sequences of each part; those of validation take a quarter
    of the time at most."""
    both_strands = not data.stranded and not classifier.invariant
    start = time.monotonic()
    valid = ShuffledBatches(data.valid, batch_size, classifier.vocab, seed, 0, both_strands)
    number = min(len(data.valid), MAX_VALID, fitting)
    valid_features = read_features(classifier, valid, number, longest, seconds / 4, report)
    passes = (False, True) if both_strands else (False,)
    train = [
        ShuffledBatches(data.train, batch_size, classifier.vocab, seed, 0, both_strands, other)
        for other in passes
    ]
    number = min(len(data.train) * len(train), fitting)
    left = seconds - (time.monotonic() - start)
    return read_features(
        classifier, itertools.chain(*train), number, longest, left, report
    ), valid_features


def _valid_loss(classifier: Classifier, valid: StoredFeatures, batch_size: int) -> float:
    """The validation loss of the target; infinite if it is not a number, or no label is known."""
    classifier.eval()
    if not bool(valid.labels.isfinite().any()):
        return math.inf
    with torch.no_grad():
        outputs = [
            valid.outputs(classifier, rows)[0]
            for rows in torch.arange(len(valid)).split(batch_size)
        ]
        predictions = classifier.target.predictions([torch.cat(outputs)])
        loss = -classifier.target.valid_score(predictions.cpu(), valid.labels.cpu()).negative_loss
    return loss if math.isfinite(loss) else math.inf
