"""The first stage of fine-tuning: the head alone is trained, on stored features of the pretrained network (LP-FT, arXiv 2202.10054).

The network runs once for each sequence instead of once for each step, and its weights do not adapt to a head that is still random.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff.config import Json
from dnadiff.downstream.budget import Budget
from dnadiff.downstream.classifier import Classifier
from dnadiff.downstream.items import ItemBatch, ShuffledBatches, TaskData
from dnadiff.downstream.model import EVALUATION, Report
from dnadiff.draws import hash64
from dnadiff.training.optim import parameter_groups

STEPS, MIN_EPOCHS, MAX_EPOCHS, PATIENCE = 1000, 4, 30, 3
LR, WARMUP, BATCH_SIZE = 1e-3, 0.1, 32
MAX_SEQUENCES, MAX_VALID, MAX_BYTES = 10_000, 1000, 2**30  # of which features are stored; the bytes are those of one part
READ_SHARE, TRAIN_SHARE = 0.25, 0.3  # of what is left of a wall-clock budget


class StoredFeatures(NamedTuple):
    """What the head reads of S sequences: one tensor (S, L, D) float16 for each strand that the network reads together.

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
        return classifier.logits([one[rows, :longest].float() for one in self.strands], valid), self.labels[rows]


def read_features(
    classifier: Classifier, batches: Iterable[ItemBatch], number: int, length: int, seconds: float, report: Report
) -> StoredFeatures:
    """The features of the first `number` sequences of at most `length` tokens; reading stops early after `seconds` (and one batch)."""
    end, device = time.perf_counter() + seconds, next(classifier.parameters()).device
    strands: list[Tensor] = []
    valid, labels, count = torch.zeros(number, length, dtype=torch.bool, device=device), [], 0
    classifier.eval()
    for batch in batches:
        ids, mask, answers = batch.first(number - count).to(device)
        with torch.no_grad():
            features = classifier.read(ids, mask)
        # Small numbers, because they follow the last norm of the network: float16 holds them.
        strands = strands or [torch.zeros(number, length, one.shape[-1], dtype=torch.float16, device=device) for one in features]
        rows = slice(count, count + len(answers))
        for stored, one in zip(strands, features):
            stored[rows, : ids.shape[1]] = one
        valid[rows, : ids.shape[1]] = True if mask is None else mask
        labels.append(answers)
        count += len(answers)
        report(0, ids.numel())
        if count == number or time.perf_counter() > end:
            break
    return StoredFeatures([one[:count] for one in strands], valid[:count], torch.cat(labels))


def train_head(
    classifier: Classifier, data: TaskData, epochs: int | None, weight_decay: float, seed: int, budget: Budget, report: Report
) -> dict[str, Json]:
    """Train the head of a classifier, in place, and return what was done; the network stays as it is.

    The head gets the weights of the epoch with the least validation loss, which may be those it came with. Items are read in random order,
    on a random strand unless the task is stranded or the network reads both, and then on the other one.

    Args:
        epochs: at most, over the stored features; None is about 1,000 steps in 4 to 30 epochs. Training stops after 3 without improvement.
        seed: of the order, the strands and the dropout.
        budget: reading takes at most a quarter of what is left of it, and training at most 30 % of the rest.
    """
    train, valid = _train_and_valid(classifier, data, seed, READ_SHARE * budget.left, report)
    head, batches = classifier.head, math.ceil(len(train) / BATCH_SIZE)
    steps = batches * (min(MAX_EPOCHS, max(MIN_EPOCHS, round(STEPS / batches))) if epochs is None else epochs)
    start, seconds = time.perf_counter(), TRAIN_SHARE * budget.left
    optimizer = torch.optim.AdamW(parameter_groups(head, weight_decay))
    best_loss, best_epoch, best_weights = _valid_loss(classifier, valid), 0, copy.deepcopy(head.state_dict())
    step = epoch = 0
    while (progress := _progress(step, steps, start, seconds)) < 1 and epoch - best_epoch < PATIENCE:
        head.train()
        for rows in _order(len(train), seed, epoch).split(BATCH_SIZE):
            if (progress := _progress(step, steps, start, seconds)) >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = LR * min(1.0, (step + 1) / (WARMUP * steps)) * 0.5 * (1 + math.cos(math.pi * progress))
            torch.manual_seed(hash64(seed, "head dropout", step) % 2**63)
            optimizer.zero_grad()
            classifier.target.loss(*train.outputs(classifier, rows)).backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            step += 1
        epoch += 1
        loss = _valid_loss(classifier, valid)
        if loss < best_loss:
            best_loss, best_epoch, best_weights = loss, epoch, copy.deepcopy(head.state_dict())
    head.load_state_dict(best_weights)
    return {"head_sequences": len(train), "head_epochs": epoch, "head_best_epoch": best_epoch, "head_valid_loss": best_loss}


def _progress(step: int, steps: int, start: float, seconds: float) -> float:
    """The part of the training that is over, by steps or by time."""
    return max(step / steps, (time.perf_counter() - start) / seconds)


def _order(number: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(number, generator=torch.Generator().manual_seed(hash64(seed, "head training", epoch) % 2**63))


def _train_and_valid(
    classifier: Classifier, data: TaskData, seed: int, seconds: float, report: Report
) -> tuple[StoredFeatures, StoredFeatures]:
    """The features of both parts; those of validation take a quarter of the time at most."""
    both = not data.stranded and not classifier.invariant
    row_bytes = 2 * data.max_length * classifier.head.width * (2 if classifier.invariant else 1)
    most = max(BATCH_SIZE, min(MAX_SEQUENCES, MAX_BYTES // row_bytes))
    start = time.perf_counter()
    number = min(len(data.valid), MAX_VALID, most)
    valid = ShuffledBatches(data.valid, BATCH_SIZE, classifier.vocab, seed, 0, both)
    read_valid = read_features(classifier, valid, number, data.max_length, seconds / 4, report)
    train = [
        ShuffledBatches(data.train, BATCH_SIZE, classifier.vocab, seed, 0, both, other) for other in ((False, True) if both else (False,))
    ]
    number = min(len(data.train) * len(train), most)
    left = seconds - (time.perf_counter() - start)
    return read_features(classifier, itertools.chain(*train), number, data.max_length, left, report), read_valid


def _valid_loss(classifier: Classifier, valid: StoredFeatures) -> float:
    """The validation loss of the target, infinite if it is not a number."""
    classifier.eval()
    with torch.no_grad():
        parts = [valid.outputs(classifier, rows) for rows in torch.arange(len(valid)).split(EVALUATION * BATCH_SIZE)]
        predictions = classifier.target.predictions([torch.cat([outputs for outputs, _ in parts])])
        loss = -classifier.target.valid_score(predictions.cpu(), valid.labels.cpu()).negative_loss
    return loss if math.isfinite(loss) else math.inf
