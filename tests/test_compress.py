"""Lossless compression: files are restored byte for byte, and their size agrees with the
likelihood."""

import gzip
import hashlib
import json
import lzma
import math
import re
import shutil
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff import compress
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.diffusion.likelihood import curve
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.genomics.compression import coding, container
from dnadiff.genomics.compression.coding import REMEDY, describe, measure
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.weights import checkpoint

pytest.importorskip("constriction", reason="needs the extra: pip install -e '.[compress]'")

PLAIN = ">one a description\n" + "ACGTTGA" * 8 + "\n" + "ACGTTGA" * 3 + "\n"
FASTAS = {
    "plain": PLAIN,
    "soft-masked": ">x\nACGTTGAacgttgaACG\nttgaNNNNNNNNNNNN\nNNNacgtTGA\n>y z\nacgt\n",
    "iupac": ">x\nRYKMSWBDHVNrykmswbdhvn\nACGTUUuuACGT\n>only\nNNNN\n>rna\nUUUU\n",
    "odd layout": "\n\n>x  two spaces \nACGT\n\nAC\n>empty\n>last\n\nACGTTGA",
    "crlf": PLAIN.replace("\n", "\r\n"),
    "crlf without end": PLAIN.replace("\n", "\r\n").removesuffix("\r\n"),
    "many": "".join(
        f">record_{i} öäü\n{'ACGTTGA' * (1 + i % 5)}{'N' * (i % 3)}\n" for i in range(12)
    ),
    "header only": ">nothing\n",
    "byte order mark": "\ufeff" + PLAIN,
    "names twice": ">a\nACGTTGA\n>a\nACGA\n",
}


def small_settings(trained):
    """Arguments of a compression with the small model."""
    return [f"checkpoint={trained}", "batch_size=4", "num_groups=8", "window=32", "threads=1"]


@pytest.fixture
def small(trained):
    return small_settings(trained)


@pytest.mark.parametrize("kind", FASTAS)
def test_files_are_restored_byte_for_byte(cli, trained, small, tmp_path, kind):
    (tmp_path / "x.fa").write_bytes(FASTAS[kind].encode())
    status, out, err = cli("compress", *small, "input=x.fa", "output=x.dnd")
    assert status == 0, err
    status, _, err = cli("decompress", f"checkpoint={trained}", "input=x.dnd", "output=y.fa")
    assert status == 0, err
    assert (tmp_path / "y.fa").read_bytes() == (tmp_path / "x.fa").read_bytes()
    assert "bits per coded base" in out


def test_a_gzip_file_is_restored_as_its_text(cli, trained, small, tmp_path):
    (tmp_path / "x.fa.gz").write_bytes(gzip.compress(PLAIN.encode()))
    assert cli("compress", *small, "input=x.fa.gz", "output=x.dnd")[0] == 0
    assert cli("decompress", f"checkpoint={trained}", "input=x.dnd", "output=y.fa")[0] == 0
    assert (tmp_path / "y.fa").read_text() == PLAIN


def test_the_file_records_the_number_of_threads(cli, trained, small, tmp_path):
    (tmp_path / "x.fa").write_text(PLAIN)
    before = torch.get_num_threads()
    assert cli("compress", *small[:-1], "threads=2", "input=x.fa", "output=x.dnd")[0] == 0
    assert container.unpack(tmp_path / "x.dnd")[0].machine["threads"] == 2
    assert cli("decompress", f"checkpoint={trained}", "input=x.dnd", "output=y.fa")[0] == 0
    assert (tmp_path / "y.fa").read_text() == PLAIN and torch.get_num_threads() == before


def test_an_autoregressive_model_is_rejected():
    loaded = SimpleNamespace(
        path="run", denoiser=CausalDenoiser(Mamba(DNATokenizer().vocab, d_model=8, n_layers=1))
    )
    with pytest.raises(ValueError, match="run is autoregressive; compress needs a diffusion model"):
        coding.diffusion_denoiser(loaded)


def test_files_depend_only_on_the_seed(cli, small, tmp_path):
    (tmp_path / "x.fa").write_text(PLAIN)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert cli("compress", *small, "input=x.fa", f"output={name}.dnd", f"seed={seed}")[0] == 0
    a, b, c = ((tmp_path / f"{name}.dnd").read_bytes() for name in "abc")
    assert a == b != c


def test_the_code_length_agrees_with_the_likelihood(trained):
    # the mean over orders is sum_k s_k h(n_k); the coder adds less than two words
    loaded = checkpoint.load(trained)
    x = torch.from_numpy(loaded.tokenizer.encode("ACGTTGAACGTCTGA")).long()[5:11]
    maskable = torch.ones(6, dtype=torch.bool)
    h = likelihood.exact_curve(loaded.denoiser, loaded.process, x[None])[0].numpy()
    for groups in (1, 2, 6):
        expected = curve.code_length(h, curve.uniform_sizes(6, groups)) / math.log(2)
        encoder, times = coding.Encoder(), 300
        coding.code(
            loaded.denoiser,
            loaded.process,
            [x] * times,
            [maskable] * times,
            encoder,
            groups,
            1,
            100,
        )
        found = encoder.bits / times
        alone = []
        for seed in range(30):
            one = coding.Encoder()
            coding.code(loaded.denoiser, loaded.process, [x], [maskable], one, groups, seed, 1)
            alone.append(one.bits)
        assert found == pytest.approx(expected, abs=5 * np.std(alone) / times**0.5 + 1e-3)
        assert 0 <= 32 * len(encoder.words()) - encoder.bits < 64 + 1e-3 * encoder.bits


def test_more_calls_give_a_shorter_code(trained):
    loaded = checkpoint.load(trained)
    x = [torch.from_numpy(loaded.tokenizer.encode("ACGTTGA" * 9)).long() for _ in range(8)]
    lengths = []
    for groups in (1, 4, 32):
        encoder = coding.Encoder()
        coding.code(
            loaded.denoiser,
            loaded.process,
            x,
            [torch.ones(63, dtype=torch.bool)] * 8,
            encoder,
            groups,
            1,
            8,
        )
        lengths.append(encoder.bits)
    assert lengths[0] > lengths[1] > lengths[2]


def test_frequencies_add_up_and_none_is_zero():
    log_probs = torch.tensor(
        [[0.7, 0.2, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25], [1.0, 1e-30, 0.0, 0.0]]
    ).log()
    found = coding.frequencies(log_probs)
    assert (found.sum(1) == 2**coding.PRECISION).all() and (found > 0).all()
    assert found / 2**coding.PRECISION == pytest.approx(log_probs.exp().numpy(), abs=1e-6)


headers = st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), max_size=12)
bodies = st.lists(st.text("ACGTacgtNnRyUu", max_size=9), max_size=4)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(headers, bodies), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_layout_is_preserved(records, ended, newline):
    text = (
        newline.join(line for header, body in records for line in (f">{header}", *body))
        + newline * ended
    )
    about, letters = container.parse(text.encode(), "x.fa")
    assert (
        container.restore(about, [np.frombuffer(x.upper(), np.uint8) for x in letters])
        == text.encode()
    )
    for skeleton, sequence in zip(container.skeletons(about), letters):
        assert [(s == 0) for s in skeleton] == [x in "ACGTU" for x in sequence.decode().upper()]


@pytest.fixture(scope="module")
def compressed_once(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compressed")
    (folder / "x.fa").write_text(PLAIN)
    files = [f"input={folder}/x.fa", f"output={folder}/x.dnd"]
    compress.compress.start([*small_settings(trained), *files], folder)
    return folder


@pytest.fixture
def compressed(compressed_once, tmp_path):
    for name in ("x.fa", "x.dnd"):
        shutil.copy(compressed_once / name, tmp_path)
    return tmp_path / "x.dnd"


def check_rejected(cli, trained, tmp_path, message, *args, hint=""):
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("decompress", f"checkpoint={trained}", "output=y.fa", *args)
    last = err.strip().splitlines()[-1]
    assert status == 1 and message in last and hint in last and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_foreign_and_damaged_files_are_rejected(cli, trained, compressed, tmp_path):
    content = compressed.read_bytes()
    check_rejected(cli, trained, tmp_path, "x.fa is not a .dnd file", "input=x.fa")
    for place in (20, len(content) // 2, len(content) - 40, len(content) - 1):
        (tmp_path / "bad.dnd").write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        check_rejected(cli, trained, tmp_path, "bad.dnd is damaged", "input=bad.dnd")
    (tmp_path / "cut.dnd").write_bytes(content[:-7])
    check_rejected(cli, trained, tmp_path, "cut.dnd is damaged", "input=cut.dnd")
    (tmp_path / "cut.dnd").write_bytes(content[:18])
    check_rejected(cli, trained, tmp_path, "cut.dnd is damaged", "input=cut.dnd")
    check_rejected(cli, trained, tmp_path, "none.dnd does not exist", "input=none.dnd")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("torch", "1.0", "install that version of torch"),
        ("scan", "fast", "set DNADIFF_SCAN"),
        ("instructions", "NEON", "same kind of processor"),
        ("device", "H9000", "set accelerator=cpu or gpu"),
        ("dtype", "float16", "load the model in that precision"),
        ("products", "medium", "torch.set_float32_matmul_precision"),
        ("constriction", "0.0", "install that version of constriction"),
        ("math", "BLAS generic", "decompress with the same libraries"),
        ("kernels", "g++ 1.0", "set CXX to that compiler"),
        ("results", "0" * 32, "its processor computes other bits"),
    ],
)
def test_another_machine_is_rejected(cli, trained, compressed, tmp_path, key, value, message):
    header, about, words = container.unpack(compressed)
    header = replace(header, machine={**header.machine, key: value})
    (tmp_path / "other.dnd").write_bytes(container.pack(header, about, words))
    check_rejected(
        cli,
        trained,
        tmp_path,
        f"was compressed with {key} {value}",
        "input=other.dnd",
        hint=message,
    )


def test_every_recorded_property_of_a_machine_is_compared(trained, compressed):
    loaded = checkpoint.load(trained)
    recorded = (describe(loaded.denoiser) | measure(loaded.denoiser, loaded.process)).keys()
    assert recorded == REMEDY.keys() == container.unpack(compressed)[0].machine.keys()


def test_files_of_the_version_before_are_read(cli, trained, compressed, tmp_path):
    """They record neither the libraries nor the compiler of the kernels nor results."""
    header, about, words = container.unpack(compressed)
    old = {
        key: value
        for key, value in header.machine.items()
        if key not in ("math", "kernels", "results")
    }
    (tmp_path / "old.dnd").write_bytes(container.pack(replace(header, machine=old), about, words))
    status, _, err = cli("decompress", f"checkpoint={trained}", "input=old.dnd", "output=y.fa")
    assert status == 0 and (tmp_path / "y.fa").read_text() == PLAIN, err


def crafted(header, side, words=b"", size=None, check=lzma.CHECK_CRC64):
    """A file with a valid digest and any header and layout."""
    side = (
        side if isinstance(side, bytes) else lzma.compress(json.dumps(side).encode(), check=check)
    )
    about = (
        header
        if isinstance(header, bytes)
        else json.dumps({**header, "side_bytes": len(side) if size is None else size}).encode()
    )
    body = container.MAGIC + struct.pack("<I", len(about)) + about + side + words
    return body + hashlib.blake2b(body, digest_size=16).digest()


MACHINE = dict.fromkeys(
    ["device", "instructions", "torch", "dtype", "scan", "constriction"], "x"
) | {"threads": 1, "products": "highest"}
HEADER = {
    "format": 1,
    "model": "0" * 32,
    "machine": MACHINE,
    "window": 32,
    "num_groups": 8,
    "seed": 1,
    "batch_size": 4,
    "text": "0" * 32,
}
LAYOUT = {
    "headers": ["a"],
    "lines": [[4, 1]],
    "lower": [[]],
    "others": [[]],
    "newline": "\n",
    "ended": True,
    "leading": 0,
    "marked": False,
}


@pytest.mark.parametrize(
    ("header", "side", "message"),
    [
        (b"{", LAYOUT, "its header is not JSON"),
        (b"[1]", LAYOUT, "its header holds a list"),
        (b"[" * 5000, LAYOUT, "its header is nested too deeply"),
        (b"{}", LAYOUT, "its header lacks format"),
        ({"format": 9}, LAYOUT, "has format 9, this version reads 1"),
        (
            {"format": 1},
            LAYOUT,
            "its header lacks model, machine, window, num_groups, seed, batch_size, text",
        ),
        (HEADER | {"window": 0}, LAYOUT, "window 0 must be an integer"),
        (HEADER | {"batch_size": 1 << 70}, LAYOUT, "batch_size"),
        (HEADER | {"num_groups": "8"}, LAYOUT, "num_groups '8' must be an integer"),
        (HEADER | {"model": 5}, LAYOUT, "model 5 must be a string"),
        (HEADER | {"machine": {}}, LAYOUT, "its header, machine, lacks device"),
        (
            HEADER | {"machine": MACHINE | {"threads": 10**9}},
            LAYOUT,
            "machine.threads 1000000000 must be an integer from 1 to 1024",
        ),
        (
            HEADER | {"machine": MACHINE | {"threads": None}},
            LAYOUT,
            "machine.threads None must be an integer",
        ),
        (HEADER | {"machine": MACHINE | {"torch": 3}}, LAYOUT, "machine.torch 3 must be a string"),
        (
            HEADER | {"machine": MACHINE | {"products": "x"}},
            LAYOUT,
            "machine.products 'x' is not known",
        ),
        (HEADER, b"neither xz nor anything else", "its layout is damaged"),
        (HEADER, lzma.compress(b"{}")[:-9], "its layout does not end where the header says"),
        (HEADER, [1], "its layout is damaged: Input should be an object; use"),
        (HEADER, LAYOUT | {"x": 1}, "its layout is damaged: x Unexpected keyword"),
        (HEADER, {"headers": []}, "its layout is damaged: lines Field required"),
        (
            HEADER,
            LAYOUT | {"lines": [[10**10, 1]]},
            "its text takes 10,000,000,004 bytes, more than the 1,048,576 that",
        ),
        (HEADER, LAYOUT | {"lines": [[0, 10**10]]}, "its text takes 10,000,000,003 bytes"),
        (HEADER, LAYOUT | {"leading": 10**10}, "its text takes"),
        (HEADER, LAYOUT | {"lines": [[4]]}, "the lengths of lines"),
        (HEADER, LAYOUT | {"lines": [[-4, 1]]}, "lines.0.0 Input should be greater"),
        (HEADER, LAYOUT | {"lines": 4}, "lines Input should be a valid array"),
        (HEADER, LAYOUT | {"headers": []}, "the number of records"),
        (HEADER, LAYOUT | {"headers": [4]}, "headers.0 Input should be a valid string"),
        (HEADER, LAYOUT | {"headers": ["\ud800"]}, "Invalid JSON: unexpected end of hex escape"),
        (HEADER, LAYOUT | {"lower": [[3]]}, "the runs of lower case"),
        (HEADER, LAYOUT | {"others": [[0, 5, "N"]]}, "the runs of other letters"),
        (HEADER, LAYOUT | {"others": [[0, 1, "A"]]}, "the runs of other letters"),
        (HEADER, LAYOUT | {"others": [[0, 1, ["N"]]]}, "others.0.2"),
        (HEADER, LAYOUT | {"newline": "\r"}, "newline String should match"),
        (
            HEADER,
            lzma.compress(b" " * (3 << 20)),
            "its layout, decompressed, takes 1,048,577 bytes, more than the 1,048,576",
        ),
    ],
)
def test_a_crafted_file_is_refused_before_work(tmp_path, header, side, message):
    (tmp_path / "c.dnd").write_bytes(crafted(header, side))
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        container.unpack(tmp_path / "c.dnd")
    assert "c.dnd" in str(caught.value) and torch.get_num_threads() == threads


@pytest.mark.parametrize(("size", "words"), [(10**6, b""), (None, b"abc")])
def test_declared_sizes_are_compared_with_the_file(tmp_path, size, words):
    (tmp_path / "c.dnd").write_bytes(crafted(HEADER, LAYOUT, words, size))
    with pytest.raises(
        ValueError,
        match=r"c\.dnd is damaged: its parts are declared longer than the file, or not of whole "
        r"words",
    ):
        container.unpack(tmp_path / "c.dnd")


def test_a_batch_is_bounded_and_nothing_is_computed_for_another_machine(
    cli, trained, compressed, tmp_path
):
    header, about, words = container.unpack(compressed)
    many = replace(
        about,
        headers=["a"] * 4000,
        lines=[[400, 1], *[[1, 1]] * 3999],
        lower=[[]] * 4000,
        others=[[]] * 4000,
    )
    content = container.pack(replace(header, window=500, batch_size=5000), many, words)
    (tmp_path / "big.dnd").write_bytes(content)
    check_rejected(
        cli,
        trained,
        tmp_path,
        "a batch takes 1,600,000 bytes, more than the 1,048,576",
        "input=big.dnd",
    )
    foreign = replace(header, machine=header.machine | {"torch": "1.0", "threads": 7})
    (tmp_path / "other.dnd").write_bytes(container.pack(foreign, about, words))
    check_rejected(cli, trained, tmp_path, "install that version of torch", "input=other.dnd")


def test_a_text_of_few_bits_is_decompressed_with_a_larger_limit(cli, trained, small, tmp_path):
    text = ">n\n" + ("N" * 9999 + "\n") * 150 + "ACGT\n"  # more than 1 MiB
    (tmp_path / "x.fa").write_text(text)
    status, out, err = cli("compress", *small, "input=x.fa", "output=x.dnd", "window=5000")
    assert status == 0 and f"set max_bytes={len(text)}" in out, err
    check_rejected(
        cli, trained, tmp_path, f"if you trust the file, set max_bytes={len(text)}", "input=x.dnd"
    )
    found = ("input=x.dnd", "output=y.fa", f"max_bytes={len(text)}")
    assert cli("decompress", f"checkpoint={trained}", *found)[0] == 0
    assert (tmp_path / "y.fa").read_text() == text


def test_words_that_no_encoder_wrote_are_refused(cli, trained, compressed, tmp_path):
    header, about, words = container.unpack(compressed)
    for other in (words[:0], words[:1], words ^ 0xFFFFFFFF, np.zeros_like(words)):
        (tmp_path / "w.dnd").write_bytes(container.pack(header, about, other))
        check_rejected(
            cli, trained, tmp_path, "the decoded text is not the compressed one", "input=w.dnd"
        )


def test_another_model_is_rejected(cli, train_args, compressed, tmp_path):
    assert cli("train", *train_args("caduceus", 1))[0] == 0
    status, _, err = cli("decompress", "checkpoint=run", "input=x.dnd", "output=y.fa")
    assert (
        status == 1
        and "was compressed with another model" in err
        and not (tmp_path / "y.fa").exists()
    )


def test_other_probabilities_are_detected(cli, trained, compressed, tmp_path):
    header, about, words = container.unpack(compressed)
    header = replace(header, seed=header.seed + 1)
    (tmp_path / "other.dnd").write_bytes(container.pack(header, about, words))
    check_rejected(
        cli, trained, tmp_path, "the decoded text is not the compressed one", "input=other.dnd"
    )


@pytest.mark.parametrize(
    ("text", "args", "message"),
    [
        ("", [], "x.fa is empty"),
        ("ACGT\n", [], "x.fa is not FASTA"),
        (">a\nACGT\n>b\nACEF\n", [], "record 2 (b): letter 'E' at position 3 is not a nucleotide"),
        (">a\r\nACGT\n", [], "mixes two kinds of line breaks"),
        (PLAIN, ["num_groups=0"], "num_groups 0 must be an integer of at least 1"),
        (PLAIN, ["output=x.dnd.gz"], "output x.dnd.gz ends in .gz"),
        (PLAIN, ["output=x.dnd.GZ"], "output x.dnd.GZ ends in .gz"),
        ("\ufeff", [], "x.fa is empty"),
        (PLAIN, ["window=0"], "window 0 must be an integer of at least 1"),
    ],
)
def test_bad_input_gives_one_line_and_leaves_no_file(cli, small, tmp_path, text, args, message):
    (tmp_path / "x.fa").write_bytes(text.encode())
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("compress", *small, "input=x.fa", "output=x.dnd", *args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_without_the_coder_the_error_names_the_extra(cli, small, tmp_path, monkeypatch):
    (tmp_path / "x.fa").write_text(PLAIN)
    monkeypatch.setitem(__import__("sys").modules, "constriction", None)
    status, _, err = cli("compress", *small, "input=x.fa", "output=x.dnd")
    assert status == 1 and "pip install -e '.[compress]'" in err
