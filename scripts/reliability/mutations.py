"""Damage to files, as strategies of Hypothesis: each mutation takes a `random.Random` that
Hypothesis seeds and the content of a file, and returns other content.

A kind is a list of mutations that suit a format. Names that begin with `forged` make a well-formed
file of other values, with correct checksums: nothing can tell it from a file that somebody meant to
write. All others are damage to bytes, fields or lines.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import math
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

Mutation = Callable[[random.Random, bytes], bytes]
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
HUGE = [
    *["0", "-1", "1e309", "4294967296", "9223372036854775808", "1_0", "nan", "+1", "٣"],
    "",
    "1" * 400,
]
WRONG = (None, True, -1, 0, 1e308, math.nan, math.inf, 10**30, "", "x", "\x1b[31m", "\ud800")
WRONG += ("9" * 5000, [], {}, [[]], [None], {"a": 1})
BITS = (b"\0", b"\0" * 500, b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\x1b[2J", b"\n", b"\r")
BITS += (b"\n\n", b"\t", b" ", b"garbage", b"\x1f\x8b", b"\xe7", b"\xef\xbb\xbf")
LONG, HUGE_LINE, DEEP, BOMB = 1 << 20, 1 << 26, 100_000, 1 << 26


def place(draw: random.Random, data: bytes) -> int:
    """A position: anywhere, or near the beginning, the end or a line break."""
    kind, size = draw.randrange(4), len(data)
    if kind == 3 and (line := data.find(b"\n", draw.randrange(size + 1))) >= 0:
        return min(size, line + draw.randrange(3))
    near = draw.randrange(min(size, 64) + 1)
    return (draw.randrange(size + 1), near, size - near)[kind % 3]


def flip_bits(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8)) if data else 0):
        changed[min(place(draw, data), len(data) - 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def replace_block(draw: random.Random, data: bytes) -> bytes:
    """Remove, overwrite, repeat or insert a block, or cut the file before or after a place."""
    at, size = place(draw, data), 2 ** draw.randrange(1, 10)
    start, end = draw.choice(((at, at), (at, at + size), (at, at + size), (at, len(data)), (0, at)))
    block, other = data[start:end], place(draw, data)
    new = (b"", b"", draw.choice((b"\0", b"\xff")) * len(block), block * 2, block * 51)
    new += (draw.randbytes(9), draw.choice(BITS), data[other : other + size])
    return data[:start] + draw.choice(new) + data[end:]


def change_integer(draw: random.Random, data: bytes) -> bytes:
    """A length or an offset in a binary header: a small integer replaced by an extreme one."""
    size, order = draw.choice((1, 2, 4, 4, 8)), draw.choice("<>")
    at = draw.randrange(min(max(len(data) - size, 1), 256))
    at = at if draw.random() < 0.7 else place(draw, data)
    value = draw.choice((0, 1, -1, 2**15, 2**31 - 1, 2**40, 2**62, draw.randrange(2**16)))
    new = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[size], value % 256**size)
    return data[:at] + new + data[at + size :]


def empty(draw: random.Random, data: bytes) -> bytes:
    return draw.choice((b"", b"\n", b" ", b"\0"))


BYTES: list[Mutation] = [*[flip_bits] * 3, *[replace_block] * 8, *[change_integer] * 2, empty]


def line_ends(draw: random.Random, data: bytes) -> bytes:
    ends = ("\r", "\r\n", "\r \n", "\r\n \n \r", "\n\r", "\x0b", "\u2028")
    chosen = draw.choice(ends).encode().split(b" ")
    return b"".join(line + draw.choice(chosen) for line in data.split(b"\n"))


def encoding(draw: random.Random, data: bytes) -> bytes:
    text = data.decode() + draw.choice(("", "ç"))
    return text.encode(draw.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1")))


def long_line(draw: random.Random, data: bytes) -> bytes:
    """One long record, line, field or run of blank lines."""
    at, size = place(draw, data), draw.choice((*[LONG] * 9, HUGE_LINE))
    letter = draw.choice((b"A", b"N", b">", b" ", b"1", b"\t", b'"', b"\n", b"x\x1b"))
    return data[:at] + letter * (size // len(letter)) + data[at:]


def deep(draw: random.Random, data: bytes) -> bytes:
    at = draw.choice((0, place(draw, data)))
    return data[:at] + draw.choice((b"[", b'{"a":', b"- ", b"(")) * DEEP + data[at:]


def number(draw: random.Random, data: bytes) -> bytes:
    found = draw.choice([*re.finditer(rb"\d+", data)])
    return data[: found.start()] + draw.choice(HUGE).encode() + data[found.end() :]


def edit_lines(draw: random.Random, data: bytes) -> bytes:
    """Swap two lines, or remove or repeat one."""
    lines = data.split(b"\n")
    i, j, action = draw.randrange(len(lines)), draw.randrange(len(lines)), draw.randrange(3)
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines[:j] + lines[j : j + 1] * (2 * (action > 1)) + lines[j + (action > 0) :])


TEXT: list[Mutation] = [*BYTES, line_ends, encoding, long_line, deep, number, number]
TEXT += [edit_lines] * 2


def edit_fields(draw: random.Random, data: bytes) -> bytes:
    """Remove a field of a row, all fields from one on, or add one."""
    lines, separator = data.split(b"\n"), b"\t" if b"\t" in data else b","
    row = draw.randrange(len(lines))
    fields = lines[row].split(separator)
    at, action = draw.randrange(len(fields)), draw.randrange(3)
    if action == 2:
        fields.insert(at, draw.choice((b"", b"1", b'"', b'"a', b"ACGT", b"-5")))
    else:
        del fields[at :: (1, len(fields))[action]]
    lines[row] = separator.join(fields)
    return b"\n".join(lines)


TABLE: list[Mutation] = [*TEXT, *[edit_fields] * 6]


def changed_value(draw: random.Random, value: object) -> object:
    """A nested value with one node replaced, removed, renamed or repeated."""
    places: list[tuple[object, object]] = []

    def walk(node: object) -> None:
        keys = (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        for key in keys:
            places.append((node, key))
            walk(node[key])

    walk(value)
    if not places or draw.random() < 0.03:
        return draw.choice(WRONG)
    node, key = draw.choice(places)
    action, old = draw.randrange(6), node[key]
    if action == 0:
        del node[key]
    elif action == 1 and isinstance(node, dict):
        node[draw.choice(("x", *node))] = node.pop(key)
    elif action == 1:
        node.append(old)
    elif action == 2 and isinstance(old, (int, float)):
        node[key] = draw.choice((old + 1, -old, old * 1_000_003, str(old), 0, 0.5, [old]))
    else:
        node[key] = draw.choice(WRONG)
    return value


def forged_json(draw: random.Random, data: bytes) -> bytes:
    value = changed_value(draw, json.loads(data))
    return json.dumps(value, ensure_ascii=draw.random() < 0.9).encode("utf-8", "surrogatepass")


def forged_lines(draw: random.Random, data: bytes) -> bytes:
    """One line of JSON lines changed."""
    lines = data.split(b"\n")
    i = draw.choice([i for i, line in enumerate(lines) if line.strip()])
    lines[i] = forged_json(draw, lines[i])
    return b"\n".join(lines)


def forged_yaml(draw: random.Random, data: bytes) -> bytes:
    import yaml

    value = yaml.dump(changed_value(draw, yaml.safe_load(data)), sort_keys=False)
    return value.encode("utf-8", "surrogatepass")


def aliases(draw: random.Random, data: bytes) -> bytes:
    """Aliases of aliases, or of what they are in."""
    if draw.random() < 0.3:
        return data + b"\nz: &z [*z]\n"
    levels = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    return data + b"\na0: &a0 [x]\n" + "".join(levels).encode()


JSON: list[Mutation] = [*TEXT, *[forged_json] * 12]
JSON_LINES: list[Mutation] = [*TEXT, *[forged_lines] * 8]
YAML: list[Mutation] = [*TEXT, *[forged_yaml] * 12, aliases]


def bgzip(text: bytes, size: int = 400) -> bytes:
    """The text in blocks of bgzip."""
    blocks = []
    for part in (text[start : start + size] for start in range(0, len(text), size)):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        body = packer.compress(part) + packer.flush()
        head = bytes.fromhex("1f8b08040000000000ff060042430200") + struct.pack("<H", len(body) + 25)
        blocks += [head, body, struct.pack("<II", zlib.crc32(part), len(part))]
    return b"".join(blocks) + BGZIP_END


PACKS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": partial(gzip.compress, mtime=0),
    ".bgz": bgzip,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def inside(mutation: Mutation) -> Mutation:
    """A mutation of the text in a gzip file."""

    def text(draw: random.Random, data: bytes) -> bytes:
        return PACKS[".gz"](mutation(draw, gzip.decompress(data)))

    text.__name__ = mutation.__name__
    return text


def members(draw: random.Random, data: bytes) -> bytes:
    """Members of gzip, or blocks of bgzip, cut or added."""
    cut = draw.choice([found.start() for found in re.finditer(rb"\x1f\x8b\x08", data)])
    added = (gzip.compress(b"")[:-3], gzip.compress(b"\n"), gzip.compress(b"\0"), data[:30])
    new = (data[:cut], data[:cut] + BGZIP_END, data.removesuffix(BGZIP_END))
    return draw.choice((*new, *(data + each for each in added)))


def bomb(draw: random.Random, data: bytes) -> bytes:
    """64 MiB of one letter after the content, from 64 KiB of file."""
    packer, letter = zlib.compressobj(1, zlib.DEFLATED, 31), draw.choice((b"\n", b"N", b" ", b"\0"))
    content = [packer.compress(gzip.decompress(data))]
    content += [packer.compress(letter * LONG) for _ in range(BOMB // LONG)]
    return b"".join(content) + packer.flush()


def forged_entry(draw: random.Random, data: bytes) -> bytes:
    """A zip file in which one entry has other bytes and a correct checksum, or is missing."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    victim, is_kept = draw.choice(source.namelist()), draw.random() < 0.75
    with zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name != victim or is_kept:
                new = draw.choice(BYTES)(draw, content) if name == victim else content
                target.writestr(name, new)
    return out.getvalue()


def forged_checkpoint(draw: random.Random, data: bytes) -> bytes:
    """A checkpoint with another value somewhere in its description, or another tensor."""
    import torch

    content, out = torch.load(io.BytesIO(data), weights_only=True), io.BytesIO()
    state, action = content["state_dict"], draw.randrange(8)
    name = draw.choice([*state])
    if action == 0:
        old = state[name]
        state[name] = draw.choice(
            (old[:-1], old.double(), old.long(), torch.zeros(()), old.to_sparse(), "x")
        )
    elif action == 1:
        state.pop(name)
    elif action == 2:
        content[draw.choice([*content])] = draw.choice(WRONG)
    else:
        content["hyper_parameters"] = changed_value(draw, content["hyper_parameters"])
    torch.save(content, out)
    return out.getvalue()


def forged_arrays(draw: random.Random, data: bytes) -> bytes:
    """An .npz file with another array, or one fewer."""
    import numpy as np

    with np.load(io.BytesIO(data)) as stored:
        arrays, out = dict(stored), io.BytesIO()
    name = draw.choice([*arrays])
    value = arrays.pop(name)
    texts = draw.choice(("x", "{}", "[]", "null", '{"found": 3}', '{"more": 1}'))
    numbers = draw.choice((-1, 0, 2**62, math.nan, 1e308))
    new = draw.choice((None, value.reshape(-1)[:-1], texts, numbers, value[None]))
    np.savez(out, **arrays, **({} if new is None else {name: np.array(new)}))
    return out.getvalue()


def forged_safetensors(draw: random.Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    header = forged_json(draw, data[8 : 8 + size])
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def forged_dnd(draw: random.Random, data: bytes) -> bytes:
    """A .dnd file with other values in its header or its side information, and a correct digest."""
    start = data.index(b"{")
    (length,) = struct.unpack("<I", data[start - 4 : start])
    header = json.loads(data[start : start + length])
    end = start + length + header["side_bytes"]
    side, words, action = data[start + length : end], data[end:-16], draw.randrange(16)
    if action < 4:
        side = lzma.compress(forged_json(draw, lzma.decompress(side)))
    elif action < 8:
        words = draw.choice(BYTES)(draw, words)
    elif action == 8:
        side = lzma.compress(b" " * BOMB, preset=0)
    else:
        header = changed_value(draw, header)
    if isinstance(header, dict) and draw.random() < 0.9:
        header["side_bytes"] = len(side)
    about = json.dumps(header).encode()
    body = data[: start - 4] + struct.pack("<I", len(about)) + about + side + words
    return body + hashlib.blake2b(body, digest_size=16).digest()


def forged_blocks(draw: random.Random, data: bytes) -> bytes:
    """Other content in blocks of bgzip with correct checksums."""
    return bgzip(draw.choice(BYTES)(draw, gzip.decompress(data)), 1 << 15)


CHECKPOINT: list[Mutation] = [*BYTES, forged_entry, *[forged_checkpoint] * 10]
ARRAYS: list[Mutation] = [*BYTES, forged_entry, *[forged_arrays] * 6]
SAFETENSORS: list[Mutation] = [*BYTES, *[forged_safetensors] * 6]
DND: list[Mutation] = [*BYTES, *[forged_dnd] * 16]
BCF: list[Mutation] = [*BYTES, *[forged_blocks] * 8]


def mutate(draw: random.Random, kind: Sequence[Mutation], data: bytes) -> tuple[str, bytes]:
    """The names of one or two mutations, and the content after them; never the original content."""
    names: list[str] = []
    new, wanted = data, 1 if draw.random() < 0.85 else 2
    for _ in range(20):
        chosen = draw.choice(kind)
        # What a forged file says may differ: nobody knows what damage to it may be read as.
        if names and names[0].startswith("forged") != chosen.__name__.startswith("forged"):
            continue
        try:
            new = chosen(draw, new)
        except Exception:  # an earlier mutation has damaged what this one reads
            continue
        names.append(chosen.__name__)
        if len(names) == wanted:
            break
    return (" + ".join(names), new) if new != data else ("flip_bits", flip_bits(draw, data or b"x"))


class Damage(NamedTuple):
    """A damaged file: its path in the folder of its reader (with the ending of a compression), that
    of the undamaged file, its content, the names of its mutations, and whether it keeps its time.
    """

    path: Path
    of: Path
    content: bytes
    names: str
    keeps_time: bool


@st.composite
def damages(
    draw: st.DrawFn, folder: Path, kinds: Mapping[str, Sequence[Mutation]], packs: Sequence[str]
) -> Damage:
    """One of the files in a folder, possibly compressed, and damaged before or after.

    Args:
        kinds: pattern of files -> the mutations that suit them.
    """
    pattern = draw(st.sampled_from(sorted(kinds)))
    path, pack = draw(st.sampled_from(sorted(folder.glob(pattern)))), draw(st.sampled_from(packs))
    chance = draw(st.randoms(use_true_random=True))  # as many kinds of damage as inputs
    content, packed = path.read_bytes(), [*BYTES, *[members, bomb] * (pack in (".gz", ".bgz"))]
    if pack and draw(st.booleans()):
        names, content = mutate(chance, packed, PACKS[pack](content))
    else:
        names, content = mutate(chance, kinds[pattern], content)
        content = PACKS[pack](content)
    of = path.relative_to(folder)
    return Damage(of.with_name(of.name + pack), of, content, names, draw(st.booleans()))
