"""Related genomes from a list of addresses: fetched once, by one command."""

import numpy as np
import pytest

from dnadiff.align import align
from dnadiff.data.alignment import Alignment
from dnadiff.formats.sequences import Record, write_fasta
from dnadiff.genomics.alignment.engines import installed
from dnadiff.store import remote

pytestmark = pytest.mark.skipif(
    installed().name == "none", reason="neither LAST, minimap2 nor mappy is installed"
)


@pytest.fixture
def listed(server, tmp_path):
    """A target here; a list of two relatives and the relatives on the server."""
    draw = np.random.default_rng(0)
    target = draw.integers(0, 4, 4000)
    write_fasta(tmp_path / "t.fa", [Record("t", "", letters(target))])
    server.files = {}
    rows = ["path\tlabel"]
    for name in ("a", "b"):
        relative = np.where(draw.random(4000) < 0.2, draw.integers(0, 4, 4000), target)
        server.files[f"/{name}.fa"] = b">x\n" + letters(relative) + b"\n"
        rows.append(f"{server.url}/{name}.fa\tGenus_{name}.GCF_00000000{len(rows)}.1")
    server.files["/genomes.tsv"] = ("\n".join(rows).replace(f"{server.url}/", "") + "\n").encode()
    (tmp_path / "genomes.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def letters(bases):
    return bytes(b"ACGT"[base] for base in bases)


@pytest.mark.parametrize("here", [True, False])
def test_a_list_of_addresses_is_fetched_once_and_aligned(here, listed, server):
    names = ["Genus_a.GCF_000000001.1", "Genus_b.GCF_000000002.1"]
    related = str(listed / "genomes.tsv") if here else f"{server.url}/genomes.tsv"
    for number in (1, 2):
        remote._current.clear()  # as in another process
        output = str(listed / f"{number}.aln")
        align(genome=str(listed / "t.fa"), related=related, output=output)
        found = Alignment(output)
        assert [each.name for each in found.genomes] == names
        assert all(each.coverage > 0.9 for each in found.genomes)
    fetched = [name for name, _ in server.asked if name.endswith(".fa")]
    assert fetched == ["/a.fa", "/b.fa"]


def test_an_address_without_a_genome_is_one_line(listed, server):
    del server.files["/b.fa"]
    with pytest.raises(FileNotFoundError, match=r"^http://127\.0\.0\.1:\d+/b\.fa does not exist"):
        align(
            genome=str(listed / "t.fa"),
            related=str(listed / "genomes.tsv"),
            output=str(listed / "x.aln"),
        )
    assert not (listed / "x.aln").exists()
