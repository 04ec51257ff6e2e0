"""Damage to files: each mutation takes the content of a file and returns another, decided by a
`random.Random` alone.

A kind is a list of mutations that suit a format. Names that begin with `forged` make a well-formed
file of other values, with correct checksums: nothing can tell it from a file that somebody meant to
write. All others are damage to bytes, fields or lines.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence

Mutation = Callable[[random.Random, bytes], bytes]
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
HUGE = (
    "0",
    "-1",
    "1e309",
    "4294967296",
    "9223372036854775808",
    "1" + "0" * 30,
    "1" * 400,
    "1_0",
    "nan",
    "+1",
    "٣",
    "",
)
WRONG = (
    None,
    True,
    -1,
    0,
    1e308,
    math.nan,
    math.inf,
    10**30,
    2**63,
    "",
    "x",
    "\x1b[31m",
    "\ud800",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
)
_LONG, _DEEP, _BOMB = 1 << 20, 100_000, 1 << 26


def _place(draw: random.Random, data: bytes) -> int:
    """A position: anywhere, or near the beginning, the end or a line break."""
    kind, size = draw.randrange(4), len(data)
    if kind == 1:
        return draw.randrange(min(size, 64) + 1)
    if kind == 2:
        return size - draw.randrange(min(size, 64) + 1)
    if kind == 3 and (line := data.find(b"\n", draw.randrange(size + 1))) >= 0:
        return min(size, line + draw.randrange(3))
    return draw.randrange(size + 1)


def _block(draw: random.Random, data: bytes) -> tuple[int, int]:
    start = _place(draw, data)
    return start, min(len(data), start + 2 ** draw.randrange(1, 10))


def flip_bits(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8)) if data else 0):
        changed[min(_place(draw, data), len(data) - 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def set_bytes(draw: random.Random, data: bytes) -> bytes:
    start, end = _block(draw, data)
    return (
        data[:start] + draw.choice((b"\0", b"\xff", draw.randbytes(1))) * (end - start) + data[end:]
    )


def cut(draw: random.Random, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def cut_start(draw: random.Random, data: bytes) -> bytes:
    return data[_place(draw, data) :]


def remove_block(draw: random.Random, data: bytes) -> bytes:
    start, end = _block(draw, data)
    return data[:start] + data[end:]


def repeat_block(draw: random.Random, data: bytes) -> bytes:
    start, end = _block(draw, data)
    return data[:end] + data[start:end] * draw.choice((1, 1, 50)) + data[end:]


def swap_blocks(draw: random.Random, data: bytes) -> bytes:
    (a, b), (c, d) = sorted((_block(draw, data), _block(draw, data)))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:] if b <= c else data


def insert(draw: random.Random, data: bytes) -> bytes:
    at = _place(draw, data)
    new = draw.choice(
        (
            b"\0",
            b"\0" * 500,
            b"\xff",
            b"\xc3\x28",
            b"\xed\xa0\x80",
            b"\x1b[2J",
            b"\n",
            b"\r",
            b"\n\n",
            b"\t",
            b" ",
            draw.randbytes(9),
        )
    )
    return data[:at] + new + data[at:]


def append(draw: random.Random, data: bytes) -> bytes:
    return data + draw.choice(
        (
            b"\0",
            b"\0" * 512,
            b"garbage",
            draw.randbytes(40),
            data[: len(data) // 2],
            b"\x1f\x8b",
            b"\n",
        )
    )


def change_integer(draw: random.Random, data: bytes) -> bytes:
    """A length or an offset in a binary header: a small integer replaced by an extreme one."""
    size, order = draw.choice((1, 2, 4, 4, 8)), draw.choice("<>")
    at = (
        draw.randrange(min(max(len(data) - size, 1), 256))
        if draw.random() < 0.7
        else _place(draw, data)
    )
    value = (
        draw.choice((0, 1, -1, 2**15, 2**31 - 1, 2**40, 2**62, draw.randrange(2**16))) % 256**size
    )
    new = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[size], value)
    return data[:at] + new + data[at + size :]


def empty(draw: random.Random, data: bytes) -> bytes:
    return draw.choice((b"", b"\n", b" ", b"\0"))


BYTES: list[Mutation] = [
    flip_bits,
    flip_bits,
    cut,
    cut,
    cut_start,
    set_bytes,
    remove_block,
    repeat_block,
    swap_blocks,
    insert,
    append,
]
BYTES += [change_integer, change_integer, empty]


def line_ends(draw: random.Random, data: bytes) -> bytes:
    lines, ends = (
        data.split(b"\n"),
        draw.choice(
            (
                (b"\r",),
                (b"\r\n",),
                (b"\r", b"\n"),
                (b"\r\n", b"\n", b"\r"),
                (b"\n\r",),
                (b"\x0b",),
                (b"\xe2\x80\xa8",),
            )
        ),
    )
    return b"".join(line + draw.choice(ends) for line in lines)


def long_line(draw: random.Random, data: bytes) -> bytes:
    at = _place(draw, data)
    return (
        data[:at]
        + draw.choice((b"A", b"N", b">", b" ", b"1", b"\t", b'"', b"x\x1b")) * _LONG
        + data[at:]
    )


def deep(draw: random.Random, data: bytes) -> bytes:
    at = draw.choice((0, _place(draw, data)))
    return data[:at] + draw.choice((b"[", b'{"a":', b"- ", b"(")) * _DEEP + data[at:]


def number(draw: random.Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return insert(draw, data)
    one = draw.choice(found)
    return data[: one.start()] + draw.choice(HUGE).encode() + data[one.end() :]


def swap_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


def drop_line(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    del lines[draw.randrange(len(lines))]
    return b"\n".join(lines)


TEXT: list[Mutation] = [*BYTES, line_ends, long_line, deep, number, number, swap_lines, drop_line]


def drop_field(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    row = draw.randrange(len(lines))
    separator = b"\t" if b"\t" in data else b","
    fields = lines[row].split(separator)
    del fields[draw.randrange(len(fields)) :: draw.choice((1, len(fields)))]
    lines[row] = separator.join(fields)
    return b"\n".join(lines)


def add_field(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    row = draw.randrange(len(lines))
    separator = b"\t" if b"\t" in data else b","
    fields = lines[row].split(separator)
    fields.insert(draw.randrange(len(fields) + 1), draw.choice((b"", b"1", b'"', b'"a', b"ACGT")))
    lines[row] = separator.join(fields)
    return b"\n".join(lines)


TABLE: list[Mutation] = [*TEXT, drop_field, drop_field, drop_field, add_field, add_field]


def changed_value(draw: random.Random, value: object) -> object:
    """A nested value with one node replaced, removed, renamed or repeated."""
    places: list[tuple[object, object]] = []

    def walk(node: object) -> None:
        keys = (
            node.keys()
            if isinstance(node, dict)
            else range(len(node))
            if isinstance(node, list)
            else ()
        )
        for key in keys:
            places.append((node, key))
            walk(node[key])

    walk(value)
    if not places or draw.random() < 0.03:
        return draw.choice(WRONG)
    node, key = draw.choice(places)
    action = draw.randrange(6)
    if action == 0:
        del node[key]
    elif action == 1 and isinstance(node, dict):
        node["x" if draw.random() < 0.5 else draw.choice(list(node))] = node.pop(key)
    elif action == 1 and isinstance(node, list):
        node.append(node[key])
    elif action == 2 and isinstance(node[key], (int, float)):
        node[key] = draw.choice(
            (node[key] + 1, -node[key], node[key] * 1_000_003, str(node[key]), 0, 0.5, [node[key]])
        )
    else:
        node[key] = draw.choice(WRONG)
    return value


def forged_json(draw: random.Random, data: bytes) -> bytes:
    return json.dumps(
        changed_value(draw, json.loads(data)), ensure_ascii=draw.random() < 0.9
    ).encode("utf-8", "surrogatepass")


def forged_lines(draw: random.Random, data: bytes) -> bytes:
    """One line of JSON lines changed."""
    lines = data.split(b"\n")
    full = [i for i, line in enumerate(lines) if line.strip()]
    i = draw.choice(full)
    lines[i] = forged_json(draw, lines[i])
    return b"\n".join(lines)


def forged_yaml(draw: random.Random, data: bytes) -> bytes:
    import yaml

    value = changed_value(draw, yaml.safe_load(data))
    return yaml.dump(value, sort_keys=False, allow_unicode=False).encode("utf-8", "surrogatepass")


JSON: list[Mutation] = [*TEXT, *[forged_json] * 12]
JSON_LINES: list[Mutation] = [*TEXT, *[forged_lines] * 8]
YAML: list[Mutation] = [*TEXT, *[forged_yaml] * 12]


def bgzip(text: bytes, size: int = 4096, end: bool = True) -> bytes:
    """The text in blocks of bgzip."""
    blocks = []
    for start in range(0, len(text), size):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        body = packer.compress(text[start : start + size]) + packer.flush()
        head = (
            bytes.fromhex("1f8b08040000000000ff0600424302")
            + b"\0"
            + struct.pack("<H", len(body) + 25)
        )
        blocks.append(
            head
            + body
            + struct.pack(
                "<II", zlib.crc32(text[start : start + size]), len(text[start : start + size])
            )
        )
    return b"".join(blocks) + (BGZIP_END if end else b"")


def without_last_block(draw: random.Random, data: bytes) -> bytes:
    return data.removesuffix(BGZIP_END)


def cut_between_members(draw: random.Random, data: bytes) -> bytes:
    starts = [found.start() for found in re.finditer(rb"\x1f\x8b\x08", data)]
    return data[: draw.choice(starts)] + (BGZIP_END if draw.random() < 0.3 else b"")


def gzip_member(draw: random.Random, data: bytes) -> bytes:
    return data + draw.choice(
        (
            gzip.compress(b"", mtime=0),
            gzip.compress(b"\n", mtime=0)[:-3],
            gzip.compress(b"\0", mtime=0),
            data[:30],
        )
    )


def bomb(draw: random.Random, data: bytes) -> bytes:
    """64 MiB of one letter after the content, from 64 KiB of file."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    letter, content = draw.choice((b"\n", b"\n", b"N", b" ", b"\0", b"A", b">")), []
    content.append(packer.compress(gzip.decompress(data)))
    content += [packer.compress(letter * (1 << 20)) for _ in range(_BOMB >> 20)]
    return b"".join(content) + packer.flush()


def compressed(inner: Sequence[Mutation], blocks: bool = False) -> list[Mutation]:
    """Mutations of a compressed file, and of the text in it."""

    def packed(mutation: Mutation) -> Mutation:
        def text(draw: random.Random, data: bytes) -> bytes:
            new = mutation(draw, gzip.decompress(data))
            return bgzip(new) if blocks else gzip.compress(new, mtime=0)

        text.__name__ = f"{mutation.__name__} inside"
        return text

    return [
        *BYTES,
        *BYTES,
        gzip_member,
        gzip_member,
        cut_between_members,
        *([without_last_block] if blocks else []),
        bomb,
        *map(packed, inner),
    ]


def forged_entry(draw: random.Random, data: bytes) -> bytes:
    """A zip file in which one entry has other bytes, a correct checksum, or is missing."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    victim, action = draw.choice(source.namelist()), draw.randrange(4)
    with zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == victim and action == 0:
                continue
            target.writestr(name, draw.choice(BYTES)(draw, content) if name == victim else content)
    return out.getvalue()


def forged_checkpoint(draw: random.Random, data: bytes) -> bytes:
    """A checkpoint with another value somewhere in its description, or another tensor."""
    import torch

    content = torch.load(io.BytesIO(data), weights_only=True)
    state, described = content["state_dict"], content["hyper_parameters"]
    action = draw.randrange(8)
    if action == 0:
        name = draw.choice(list(state))
        state[name] = draw.choice(
            (
                state[name][:-1],
                state[name].double(),
                state[name].long(),
                torch.zeros(()),
                state[name].to_sparse(),
                "x",
            )
        )
    elif action == 1:
        state.pop(draw.choice(list(state)))
    elif action == 2:
        content[draw.choice(list(content))] = draw.choice(WRONG)
    else:
        content["hyper_parameters"] = changed_value(draw, described)
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def forged_arrays(draw: random.Random, data: bytes) -> bytes:
    """An .npz file with another array, or one fewer."""
    import numpy as np

    with np.load(io.BytesIO(data)) as stored:
        arrays = {name: stored[name] for name in stored}
    name = draw.choice(list(arrays))
    value = arrays.pop(name)
    action = draw.randrange(5)
    if action == 1:
        arrays[name] = value.reshape(-1)[:-1]
    elif action == 2:
        arrays[name] = np.array(
            draw.choice(("x", "{}", "[]", "null", '{"found": 3}', '{"more": 1}'))
        )
    elif action == 3:
        arrays[name] = np.array(draw.choice((-1, 0, 2**62, math.nan, 1e308)))
    elif action == 4:
        arrays[name] = value[None]
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def forged_safetensors(draw: random.Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    header = forged_json(draw, data[8 : 8 + size])
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def forged_dnd(draw: random.Random, data: bytes) -> bytes:
    """A .dnd file with another value in its header or its side information, and a correct
    digest."""
    import hashlib
    import lzma

    start = data.index(b"{")
    (length,) = struct.unpack("<I", data[start - 4 : start])
    header = json.loads(data[start : start + length])
    end = start + length + header["side_bytes"]
    side, words = data[start + length : end], data[end:-16]
    action = draw.randrange(4)
    if action == 0:
        side = lzma.compress(forged_json(draw, lzma.decompress(side)))
    elif action == 1:
        words = draw.choice(BYTES)(draw, words)
    elif action == 2 and draw.random() < 0.2:
        side = lzma.compress(b" " * _BOMB, preset=0)
    else:
        header = changed_value(draw, header)
    if isinstance(header, dict) and draw.random() < 0.9:
        header["side_bytes"] = len(side)
    about = json.dumps(header).encode()
    body = data[: start - 4] + struct.pack("<I", len(about)) + about + side + words
    return body + hashlib.blake2b(body, digest_size=16).digest()


CHECKPOINT: list[Mutation] = [*BYTES, forged_entry, *[forged_checkpoint] * 10]
ARRAYS: list[Mutation] = [*BYTES, forged_entry, *[forged_arrays] * 6]
SAFETENSORS: list[Mutation] = [*BYTES, *[forged_safetensors] * 6]
DND: list[Mutation] = [*BYTES, *[forged_dnd] * 16]


def mutate(draw: random.Random, kind: Sequence[Mutation], data: bytes) -> tuple[str, bytes]:
    """The names of one or two mutations, and the content after them; never the original content."""
    names: list[str] = []
    new, wanted = data, 1 if draw.random() < 0.85 else 2
    for _ in range(20):
        chosen = draw.choice(kind)
        if names and names[0].startswith("forged") != chosen.__name__.startswith("forged"):
            # what a forged file says may differ: nobody knows what damage to it may be read as
            continue
        try:
            new = chosen(draw, new)
            names.append(chosen.__name__)
        except Exception:  # a structure-aware mutation of a file that an earlier one has damaged
            continue
        if len(names) == wanted:
            break
    if new == data:
        return "flip_bits", flip_bits(draw, data) if data else b"\0"
    return " + ".join(names), new
