"""The tables of measured promoters, and the weight matrix."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.finetune import finetune
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.store.objects import build
from dnadiff.supervised.baselines import PromoterMotif, best_scores, log_odds
from dnadiff.supervised.items import Items

DNA = DNATokenizer()
PERFECT = sum(np.log2(p / 25) for p in (78, 82, 68, 58, 51, 55, 82, 90, 52, 59, 49, 89))


def random_letters(random: np.random.Generator, length: int) -> str:
    return "".join(random.choice(list("ACGT"), length))


def grid(path: Path, backgrounds: int = 8, each: int = 10, controls: int = 3) -> str:
    random = np.random.default_rng(0)
    lines = ["sequence,expression,name,barcodes"]
    for background in range(backgrounds):
        for number in range(each):
            inner = f"{random_letters(random, 150)}"
            name = f"noUP_35T->C_lac-spacer-17bp_{number}A->G_bg{background}00:{background}50"
            lines.append(f"{'A' * 24}{inner}{'C' * 24},{2.0 ** (number % 4)},{name},3")
    lines += [f"{'A' * 198},0.1,neg_control_{number}:9,3" for number in range(controls)]
    lines += [f"{'A' * 198},9.5,pos_control_apFAB{number},3" for number in range(controls)]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return str(path)


def task(name: str, path: str, *overrides: str):
    return build(
        finetune.compose(["checkpoint=x", f"task={name}", f"task.path={path}", *overrides]).task,
        trust=None,
    )


def test_promoters_of_one_background_are_in_one_part(tmp_path):
    data = task("ecoli_sigma70", grid(tmp_path / "s.csv.gz")).load(DNA)
    parts = [set(items.groups.tolist()) for items in (data.train, data.valid, data.test)]
    assert (
        [len(part) for part in parts] == [5, 1, 2]
        and not parts[0] & parts[1]
        and not parts[0] & parts[2]
        and not parts[1] & parts[2]
    )
    assert [len(items) for items in (data.train, data.valid, data.test)] == [50, 10, 20]
    assert (data.notes["rows_left_out"], data.notes["groups"]) == (6, 8)
    assert set(data.train.lengths.tolist()) == {150} and data.stranded
    assert not {"A" * 24, "C" * 24} & {
        DNA.decode(row[:24]) for row in data.test.ids.numpy()
    }  # no adapters
    assert sorted(set(data.train.labels[:, 0].tolist())) == [0, 1, 2, 3]  # log2


def test_a_promoter_that_cannot_be_used_is_named(tmp_path):
    row = "sequence,expression,name\n" + "A" * 198
    for line, message in (
        (
            ",0,x_bg1:2\n",
            "line 2 has 0 in column 'expression', and task.transform=log2 with task.loss=mse takes "
            "a number above 0",
        ),
        (
            ",strong,x_bg1:2\n",
            "line 2 has 'strong' in column 'expression', and a regression expects a number",
        ),
        (",1,neg_1\n", r"has no row with '_bg\\d+:\\d+' in column 'name'"),
    ):
        (tmp_path / "t.csv").write_text(row + line)
        with pytest.raises(ValueError, match=r"t\.csv") as error:
            task("ecoli_sigma70", str(tmp_path / "t.csv")).load(DNA)
        assert message in str(error.value)
    (tmp_path / "t.csv").write_text("sequence,expression,name\nACGT,1,x_bg1:2\n")
    with pytest.raises(ValueError, match=r"line 2 has 4 bases, and task\.end is 174"):
        task("ecoli_sigma70", str(tmp_path / "t.csv")).load(DNA)


def test_the_genome_split_of_measured_starts_is_used_and_overlapping_sequences_share_validation(
    tmp_path,
):
    random = np.random.default_rng(1)
    genome = random_letters(random, 6000)
    rows = [(genome[start : start + 150], "train") for start in range(0, 4000, 100)]
    rows += [
        (reverse_complement(genome[start : start + 150]), "test")
        for start in range(4200, 5800, 100)
    ]
    lines = [
        f"{sequence},{0.5 + number % 7},{part}" for number, (sequence, part) in enumerate(rows)
    ]
    (tmp_path / "t.csv").write_text("sequence,expression,split\n" + "\n".join(lines) + "\n")
    # Neighbors overlap by 50 bases: all training rows are one cluster, of which no validation part
    # can be cut off.
    with pytest.raises(ValueError, match="too few different sequences"):
        task("ecoli_tss", str(tmp_path / "t.csv")).load(DNA)
    data = task("ecoli_tss", str(tmp_path / "t.csv"), "task.cluster_kmer=null").load(DNA)
    assert [len(items) for items in (data.train, data.valid, data.test)] == [36, 4, 16]
    np.testing.assert_allclose(data.test.labels[0, 0], np.log1p(0.5 + 40 % 7), rtol=1e-6)


def items_of(*sequences: str) -> Items:
    return Items.from_sequences(
        [DNA.encode(sequence) for sequence in sequences],
        np.zeros(len(sequences), int),
        DNA.vocab.pad_id,
    )


def test_a_perfect_promoter_has_the_sum_of_its_bits_wherever_it_is():
    perfect, wide = f"TTGACA{'G' * 17}TATAAT", f"TTGACA{'G' * 19}TATAAT"
    found = PromoterMotif(DNA).features(
        items_of(perfect, "CCGG" + perfect + "GG", wide, reverse_complement(perfect)), stranded=True
    )[:, 0]
    np.testing.assert_allclose(found[:3], [PERFECT, PERFECT, PERFECT - 2])
    assert found[3] < PERFECT - 5
    either = PromoterMotif(DNA).features(
        items_of(perfect, "CC" + reverse_complement(perfect) + "C"), stranded=False
    )[:, 0]
    np.testing.assert_allclose(either, [PERFECT, PERFECT])


def test_the_best_score_is_that_of_all_pairs():
    random = np.random.default_rng(2)
    bases, lengths = (
        random.integers(0, 5, (6, 60)).astype(np.uint8),
        np.array([60, 60, 50, 28, 27, 20]),
    )
    first, second = (
        log_odds("TTGACA", (78, 82, 68, 58, 51, 55)),
        log_odds("TATAAT", (82, 90, 52, 59, 49, 89)),
    )
    assert (first[:, 4] == 0).all() and np.allclose((0.25 * 2 ** first[:, :4]).sum(1), 1)
    found = best_scores(bases, lengths, 0.5)
    for row, length, score in zip(bases, lengths, found):
        pairs = [
            first[range(6), row[i : i + 6]].sum()
            + second[range(6), row[i + 6 + s : i + 12 + s]].sum()
            - 0.5 * abs(s - 17)
            for s in range(15, 20)
            for i in range(length - 11 - s)
        ]
        assert score == pytest.approx(
            max(pairs, default=first.min(1).sum() + second.min(1).sum() - 1)
        )
