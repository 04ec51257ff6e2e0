"""Writers that exist only to test the readers."""

import gzip
import io
import struct
import zlib

from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

CODE = {"T": 0, "C": 1, "A": 2, "G": 3, "N": 0}


def runs(text, inside):
    """(start, length) of each stretch of letters for which `inside` holds."""
    found, start = [], None
    for place, letter in enumerate(text + "\0"):
        if letter != "\0" and inside(letter):
            start = place if start is None else start
        elif start is not None:
            found.append((start, place - start))
            start = None
    return found


def twobit(records, order="<", version=0):
    """A 2bit file of {name: letters}, case as soft-masking."""

    def block(pairs):
        starts, sizes = [s for s, _ in pairs], [n for _, n in pairs]
        return struct.pack(f"{order}I{len(pairs)}I{len(pairs)}I", len(pairs), *starts, *sizes)

    offset_format = "Q" if version else "I"
    size = 16 + sum(1 + len(name) + struct.calcsize(offset_format) for name in records)
    index, body = b"", b""
    for name, letters in records.items():
        index += (
            bytes([len(name)])
            + name.encode()
            + struct.pack(order + offset_format, size + len(body))
        )
        padded = letters.upper() + "T" * (-len(letters) % 4)
        packed = bytes(
            sum(CODE[padded[i + k]] << (6 - 2 * k) for k in range(4))
            for i in range(0, len(padded), 4)
        )
        unknown, masked = runs(letters, lambda c: c in "Nn"), runs(letters, str.islower)
        body += (
            struct.pack(order + "I", len(letters))
            + block(unknown)
            + block(masked)
            + struct.pack(order + "I", 0)
            + packed
        )
    return struct.pack(order + "4I", 0x1A412743, version, len(records), 0) + index + body


def bgzip(content, block=200):
    """The blocked gzip of samtools: members with an extra field, and an empty one at the end."""
    out = b""
    for start in [*range(0, len(content), block), None]:
        piece = b"" if start is None else content[start : start + block]
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        data = packer.compress(piece) + packer.flush()
        out += b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(data) + 25)
        out += data + struct.pack("<II", zlib.crc32(piece), len(piece))
    return out


def genbank(records):
    """A GenBank file of {name: letters}."""
    text = io.StringIO()
    rows = [
        SeqRecord(Seq(letters), name, name, "made", annotations={"molecule_type": "DNA"})
        for name, letters in records.items()
    ]
    SeqIO.write(rows, text, "genbank")
    return text.getvalue().encode()


def fasta(records, width=60, newline="\n", blank=False, final_newline=True):
    """FASTA in any layout."""
    lines = []
    for name, letters in records.items():
        lines += [
            f">{name} words",
            *(letters[i : i + width] for i in range(0, len(letters), width)),
            *([""] if blank else []),
        ]
    return (newline.join(lines) + (newline if final_newline else "")).encode()


COMPRESSED = {"plain": bytes, "gzip": gzip.compress, "bgzip": bgzip}
