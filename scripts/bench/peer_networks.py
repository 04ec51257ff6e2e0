"""Trains, scores and samples one network of another package, for peers.py, in an environment that
has that package and not dnadiff.

    PEER_PYTHON scripts/bench/peer_networks.py JOB.json

JOB.json: `peer` (d3_dna or bert), `data` (.npz with train, valid and test as bases 0..3), `output`,
    `length`, `batch`, `lr`, `tokens` or `seconds` (the budget of training), `draws`, `parts` (valid
    or test), `samples`, `calls`, `seed`, and sizes of the network. The result is
JSON: nats per base of each window of each part, tokens per second, parameters, memory; samples go
    to `output`.fa.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from peer_bound import nats_per_base, random_windows

WARMUP = 0.02  # of the budget


class Peer(ABC):
    """A network of another package: its loss, the log-probabilities of masked tokens, and its own
    sampler."""

    model: torch.nn.Module
    token_bases = 1  # bases of a token

    def tokens(self, windows: np.ndarray) -> np.ndarray:
        """Tokens (W, T) of windows of bases (W, L)."""
        k = self.token_bases
        return windows.reshape(len(windows), -1, k) @ 4 ** np.arange(k)[::-1]

    @abstractmethod
    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """The training loss of a batch."""

    def after_step(self) -> None:
        """What follows an optimizer step."""

    def finish(self) -> None:
        """What follows training."""

    @abstractmethod
    def log_probs(self, tokens: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        """log p (B, T) of the true tokens at masked positions, given the others."""

    @abstractmethod
    def sample(self, count: int, num_tokens: int, calls: int) -> torch.Tensor:
        """Tokens (count, T) by this many network calls."""


class D3(Peer):
    """d3-dna's transformer, absorbing graph, score entropy, moving average and sampler, with its
    defaults."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        from d3_dna.models import TransformerModel
        from d3_dna.models.diffusion import get_graph, get_noise
        from d3_dna.models.ema import ExponentialMovingAverage
        from d3_dna.modules.trainer import get_loss_fn
        from omegaconf import OmegaConf

        sizes = {
            "hidden_size": width,
            "cond_dim": width,
            "n_blocks": layers,
            "n_heads": heads,
            "dropout": 0.1,
            "class_dropout_prob": 0.1,
        }
        data = {"sequence_length": length, "num_classes": 4, "signal_dim": 1}
        noise = {"type": "geometric", "sigma_min": 1e-4, "sigma_max": 20}
        config = OmegaConf.create(
            {
                "dataset": data,
                "tokens": 4,
                "graph": {"type": "absorb"},
                "noise": noise,
                "model": sizes,
            }
        )
        self.model = TransformerModel(config)
        self.noise, self.graph = get_noise(config), get_graph(config, "cpu")
        self.train_loss = get_loss_fn(self.noise, self.graph, train=True, dtype=torch.float32)
        self.ema = ExponentialMovingAverage(self.model.parameters(), decay=0.9999)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.train_loss(self.model, tokens).mean() / tokens.shape[1]

    def after_step(self) -> None:
        self.ema.update(self.model.parameters())

    def finish(self) -> None:
        self.ema.copy_to(self.model.parameters())
        self.model.eval()

    def log_probs(self, tokens: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        # The score of a base is p(base | visible) / (e^sigma - 1): normalized over the bases, it is
        # the prediction.
        sigma = -torch.log1p(-masked.float().mean(1).clamp(max=1 - 1e-6))
        scores = self.model(torch.where(masked, 4, tokens), None, False, sigma)[0]
        return scores[..., :4].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def sample(self, count: int, num_tokens: int, calls: int) -> torch.Tensor:
        from d3_dna.models.diffusion import get_pc_sampler

        steps = calls - 1  # the last call removes the remaining masks
        return get_pc_sampler(
            self.graph, self.noise, (count, num_tokens), "analytic", steps, dtype=torch.float32
        )(self.model, None)


class Bert(Peer):
    """BERT of transformers on k-mers that do not overlap, trained to restore 15 % of them, as BERT
    is."""

    token_bases = 6

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        from transformers import BertConfig, BertForMaskedLM

        self.size = 4**self.token_bases
        self.model = BertForMaskedLM(
            BertConfig(
                vocab_size=self.size + 1,
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=4 * width,
                max_position_embeddings=length // self.token_bases,
                type_vocab_size=1,
                pad_token_id=None,
            )
        )

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        chosen = torch.rand(tokens.shape) < 0.15
        chosen[:, 0] |= ~chosen.any(1)
        kind = torch.rand(tokens.shape)
        random = torch.randint(self.size, tokens.shape)
        shown = torch.where(
            chosen & (kind < 0.8), self.size, torch.where(chosen & (kind > 0.9), random, tokens)
        )
        return self.model(shown, labels=torch.where(chosen, tokens, -100)).loss / self.token_bases

    def finish(self) -> None:
        self.model.eval()

    def predictions(self, shown: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, T, 4^k) of the k-mers."""
        return self.model(shown).logits[..., : self.size].log_softmax(-1)

    def log_probs(self, tokens: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        return self.predictions(torch.where(masked, self.size, tokens)).gather(
            -1, tokens[..., None]
        )[..., 0]

    def sample(self, count: int, num_tokens: int, calls: int) -> torch.Tensor:
        x = torch.full((count, num_tokens), self.size)
        turn = torch.rand(x.shape).argsort(-1).argsort(-1) * min(calls, num_tokens) // num_tokens
        for step in range(min(calls, num_tokens)):
            drawn = torch.distributions.Categorical(logits=self.predictions(x)).sample()
            x = torch.where(turn == step, drawn, x)
        return x


PEERS = {"d3_dna": D3, "bert": Bert}


def train(peer: Peer, codes: np.ndarray, job: dict) -> dict:
    """Train within the budget, with a linear warm-up and the rate that the job gives; returns what
    was measured."""
    rng, done, steps, begin = np.random.default_rng(job["seed"]), 0, 0, time.monotonic()
    optimizer = torch.optim.AdamW(peer.model.parameters(), lr=job["lr"], weight_decay=0.01)
    peer.model.train()

    def progress() -> float:
        return (
            done / job["tokens"] if "tokens" in job else (time.monotonic() - begin) / job["seconds"]
        )

    while (now := progress()) < 1:
        for group in optimizer.param_groups:
            group["lr"] = job["lr"] * min(1.0, max(now / WARMUP, 0.01))
        windows = random_windows(codes, job["length"], job["batch"], rng)
        optimizer.zero_grad()
        peer.loss(torch.from_numpy(peer.tokens(windows))).backward()
        torch.nn.utils.clip_grad_norm_(peer.model.parameters(), 1.0)
        optimizer.step()
        peer.after_step()
        done, steps = done + windows.size, steps + 1
    seconds = time.monotonic() - begin
    peer.finish()
    return {"tokens": done, "steps": steps, "seconds": seconds, "tokens_per_second": done / seconds}


def peak_memory_mb() -> int:
    """As `dnadiff.training.optim`, which may be missing here: on Linux `ru_maxrss` begins with the
    peak of the process that started this one."""
    status = Path("/proc/self/status")
    if not status.is_file():
        raise SystemExit(
            "the peak memory is read from /proc/self/status: run this benchmark on Linux"
        )
    return (
        next(
            int(line.split()[1])
            for line in status.read_text(encoding="utf-8").splitlines()
            if line.startswith("VmHWM")
        )
        >> 10
    )


def main(job: dict) -> None:
    """Run one job."""
    torch.manual_seed(job["seed"])
    with np.load(job["data"]) as stored:
        data = {part: stored[part].astype(np.int64) for part in stored.files}
    peer = PEERS[job["peer"]](job["width"], job["layers"], job["heads"], job["length"])
    row = {
        "parameters": sum(p.numel() for p in peer.model.parameters()),
        **train(peer, data["train"], job),
    }

    @torch.no_grad()
    def log_probs(tokens: np.ndarray, masked: np.ndarray) -> np.ndarray:
        return peer.log_probs(torch.from_numpy(tokens), torch.from_numpy(masked)).numpy()

    for part in job["parts"]:
        found = nats_per_base(
            log_probs, peer.tokens(data[part]), job["length"], job["draws"], job["seed"]
        )
        row[part] = found.tolist()
    if job["samples"]:
        begin, num_tokens = time.monotonic(), job["length"] // peer.token_bases
        with torch.no_grad():
            drawn = peer.sample(job["samples"], num_tokens, job["calls"]).numpy()
        row["sampling_seconds"] = time.monotonic() - begin
        bases = drawn[..., None] // 4 ** np.arange(peer.token_bases)[::-1] % 4
        lines = [
            f">sample_{i}\n{''.join('ACGT'[b] for b in each.ravel())}\n"
            for i, each in enumerate(bases)
        ]
        Path(job["output"]).with_suffix(".fa").write_text("".join(lines), encoding="ascii")
    row["peak_memory_mb"] = peak_memory_mb()
    Path(job["output"]).write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
