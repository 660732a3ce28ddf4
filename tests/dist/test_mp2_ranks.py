"""DF-MP2 over ranks: the energy of one rank, the same bits for any number of ranks and any memory, checkpoints."""

import functools
import re
import threading
import time

import numpy as np
import pytest

from trnpy import dist
from trnpy.chem import _mp2_ranks as over
from trnpy.chem._checkpoint import Checkpoint, replace
from trnpy.chem.dfmp2 import dfmp2_energy
from trnpy.dist._collectives import Communicator

NAO, NAUX = 13, 37
SMALLEST = 45_000  # bytes: the shares of few ranks are in files, orbitals come one at a time
EPS = np.finfo(float).eps


class Held:
    """Integrals of atomic orbitals that every rank has, which can be cut where a molecule's shells would end."""

    edges = [*range(0, NAUX, 3), NAUX]
    row_bytes = 8 * NAO * NAO

    def __init__(self):
        b = np.random.default_rng(7).standard_normal((NAUX, NAO, NAO))
        self.b = b + b.swapaxes(1, 2)

    def rows(self, first, last):
        return self.b[first:last]

    def check(self, memory):
        pass

    def fit(self):
        pass

    def fitted(self, b):
        return 2 * b


@functools.cache
def orbitals(*nocc):
    generator = np.random.default_rng(sum(nocc))
    c = [generator.standard_normal((NAO, NAO)) / NAO for _ in nocc]
    e = [np.sort(generator.random(NAO)) - 2.0 * (np.arange(NAO) < n) for n in nocc]
    parts = [*zip(c, e, nocc, strict=True)]
    return over.Orbitals(
        tuple(x[:, :n] for x, _, n in parts), tuple(x[:, n:] for x, _, n in parts),
        tuple(y[:n] for _, y, n in parts), tuple(y[n:] for _, y, n in parts),
    )  # fmt: skip


def program(folder, nocc, memory, with_t2=False, checkpoint=None):
    """The energy, and the bytes that this rank has sent before the sum over pairs."""
    o, comm = orbitals(*nocc), dist.comm()
    kept = None if checkpoint is None else checkpoint()
    share = over.transformed(Held(), o, comm, memory, str(folder))
    found = over.energy(share, o, comm, memory, kept, with_t2)
    return found, comm.sent


@functools.cache
def expected(*nocc):
    o, b = orbitals(*nocc), 2 * Held().b
    ov = [np.einsum("Lmn,mi,na->iaL", b, *c, optimize=True) for c in zip(o.occ, o.vir, strict=True)]
    arguments = (ov, o.occ_energy, o.vir_energy) if len(nocc) > 1 else (ov[0], o.occ_energy[0], o.vir_energy[0])
    return dfmp2_energy(*arguments, with_t2=True)


@pytest.mark.parametrize("nocc", [(NAO,), (0,), (NAO, 3), (0, 0)], ids=str)
def test_molecules_without_virtual_or_occupied_orbitals_have_no_pairs_of_energy(tmp_path, nocc):
    for found, _ in dist.threads(2, program, tmp_path, nocc, 10**7):
        if nocc != (NAO, 3):
            assert found.total == 0.0
        assert np.isfinite(found.total) and found.channels[0].direct.shape == (nocc[0], nocc[0])


@pytest.mark.parametrize("nocc", [(5,), (5, 3), (1,), (1, 4)])
def test_any_number_of_ranks_and_any_memory_give_the_same_bits(tmp_path, nocc):
    reference, bits = expected(*nocc), set()
    for ranks in (1, 2, 3, 4, 7):
        for memory in (SMALLEST, 80_000, 10**7):
            for found, _ in dist.threads(ranks, program, tmp_path, nocc, memory):
                bits.add((found.opposite_spin, found.same_spin, *(c.direct.tobytes() for c in found.channels)))
                assert found.total == pytest.approx(reference.total, rel=500 * EPS)
                assert found.same_spin == pytest.approx(reference.same_spin, rel=500 * EPS)
    assert len(bits) == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("nocc", [(5,), (5, 3)])
def test_amplitudes_are_those_of_one_rank(tmp_path, nocc):
    for found, _ in dist.threads(3, program, tmp_path, nocc, 10**7, True):
        for channel, other in zip(found.channels, expected(*nocc).channels, strict=True):
            np.testing.assert_allclose(channel.t2, other.t2, rtol=0, atol=1e4 * EPS * np.abs(other.t2).max())


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_the_bytes_sent_are_those_of_the_model(tmp_path, ranks):
    o = orbitals(12)
    sent = [sent for _, sent in dist.threads(ranks, program, tmp_path, (12,), 10**7)]
    sums = (
        ranks * 2 * (2 * 12 * 12 * 8) * (ranks - 1) / ranks
        if 2 * 12 * 12 * 8 >= 2**14
        else 2 * 12 * 12 * 8 * ranks * (ranks - 1)
    )
    assert sum(sent) - sums == pytest.approx(ranks * over.sent_bytes(o, NAUX, ranks), rel=EPS)


def test_the_next_integrals_are_read_while_some_are_transformed(tmp_path, monkeypatch):
    read, transformed, usual = [], [], over._by_orbital

    class Slow(Held):
        def rows(self, first, last):
            read.append(first)
            return super().rows(first, last)

    def by_orbital(stack, o):
        transformed.append(len(stack))
        ends = time.monotonic() + 60
        while len(read) <= len(transformed) < len(slabs) and time.monotonic() < ends:
            time.sleep(1e-3)
        assert len(read) == min(len(transformed) + 1, len(slabs))  # the next ones, and no more
        return usual(stack, o)

    slabs = over._slabs(Held.edges, 0, 1, 3)
    monkeypatch.setattr(over, "_slabs", lambda *_: slabs)
    monkeypatch.setattr(over, "_by_orbital", by_orbital)
    over.transformed(Slow(), orbitals(5), dist.comm(), 10**7, str(tmp_path))
    assert read == [first for first, _ in slabs] and len(slabs) > 10


def test_visitors_are_sent_before_the_pairs_of_the_visit_before_are_formed(tmp_path, monkeypatch):
    log = {}  # by thread
    begin, form = Communicator.exchanging, over._Pairs._form

    def exchanging(comm, blocks, call):
        log.setdefault(threading.current_thread(), []).append("sent")
        return begin(comm, blocks, call)

    def formed(*args, **options):
        log.setdefault(threading.current_thread(), []).append("pairs")
        return form(*args, **options)

    monkeypatch.setattr(Communicator, "exchanging", exchanging)
    monkeypatch.setattr(over._Pairs, "_form", formed)
    dist.threads(5, program, tmp_path, (5,), 10**7)  # each has one orbital, and two visitors
    assert [*log.values()] == [["sent", "pairs", "sent", "pairs", "pairs"]] * 5


def test_too_little_memory_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"memory=5000 bytes: "):
        dist.threads(2, program, tmp_path, (5,), 5000)


def test_the_memory_that_pairs_need_is_named_and_is_enough(tmp_path):
    with pytest.raises(over.TooLittleMemory, match="memory=13500 bytes: pairs of one orbital with another") as little:
        dist.threads(2, program, tmp_path, (5,), 13_500)
    need = int(re.search(r"need (\d+)", str(little.value))[1])
    held = over.share_bytes(orbitals(5), NAUX, 2)
    for memory in (need, need + held - 1, need + held):  # the last one is enough for the share, too
        found = dist.threads(2, program, tmp_path, (5,), memory)[0][0]
        assert found.total == pytest.approx(expected(5).total, rel=500 * EPS)


class Killed(Checkpoint):
    """A run that ends after a few blocks."""

    def __init__(self, folder, digest, writes):
        super().__init__(folder, digest, 0.0)
        self.writes = writes

    def write(self, comm, pairs):
        if self.writes == 0:
            raise KeyboardInterrupt
        super().write(comm, pairs)
        self.writes -= 1


@pytest.mark.parametrize(("ranks", "then"), [(3, 3), (3, 2), (2, 4), (1, 1)])
def test_a_run_that_ended_early_goes_on_with_the_same_bits(tmp_path, ranks, then, monkeypatch):
    folder = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        dist.threads(ranks, program, tmp_path, (9,), 16_000, False, lambda: Killed(folder, "a", 2))
    (folder / "pairs-9.npz").write_bytes(b"PK\3\4 half")
    formed, form = [], over._Pairs._form

    def watched(self, *blocks, **options):
        before = np.isnan(self.energies[0])
        form(self, *blocks, **options)
        formed.extend(map(tuple, np.argwhere(before & ~np.isnan(self.energies[0]))))

    monkeypatch.setattr(over._Pairs, "_form", watched)
    (found, _), *_ = dist.threads(then, program, tmp_path, (9,), 16_000, False, lambda: Checkpoint(folder, "a", 0.0))
    assert 0 < len(formed) < 45 and len({*formed}) == len(formed)
    assert found.total == dist.threads(1, program, tmp_path, (9,), 10**7)[0][0].total
    formed.clear()
    dist.threads(2, program, tmp_path, (9,), 16_000, False, lambda: Checkpoint(folder, "another", 0.0))
    assert len(formed) == 45


def test_a_file_is_never_half_written(tmp_path):
    path = tmp_path / "pairs-0.npz"
    replace(path, digest=np.array("a"), pairs=np.ones(3))
    before = path.read_bytes()

    class Full:
        def __array__(self, *_, **__):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace(path, digest=np.array("a"), pairs=Full())
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


@pytest.mark.mpi
@pytest.mark.parametrize("nocc", [(5,), (5, 3)])
@pytest.mark.parametrize("memory", [SMALLEST, 10**7])
def test_ranks_of_mpi_have_the_bits_of_threads(tmp_path, nocc, memory):
    found, _ = program(tmp_path, nocc, memory)
    (alone, _), *_ = dist.threads(1, program, tmp_path, nocc, 10**7)
    assert found.total == alone.total


DAMAGES = {
    "empty": lambda good: b"",
    "cut": lambda good: good[: len(good) // 2],
    "no archive": lambda good: b"pairs",
    "another bit": lambda good: good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_counts_for_none(tmp_path, damage):
    pairs = np.arange(200.0).reshape(2, 10, 10)
    replace(tmp_path / "pairs-0.npz", digest=np.array("a"), pairs=pairs)
    path = tmp_path / "pairs-1.npz"
    replace(path, digest=np.array("a"), pairs=pairs + 1)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    nothing = np.full_like(pairs, np.nan)
    for found in dist.threads(2, lambda: Checkpoint(tmp_path, "a").read(dist.comm(), nothing)):
        np.testing.assert_array_equal(found, pairs)
    for found in dist.threads(2, lambda: Checkpoint(tmp_path, "another").read(dist.comm(), nothing)):
        assert np.isnan(found).all()


def test_half_written_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "pairs-7.npz.part").write_bytes(b"half")
    nothing = np.full((2, 3, 3), np.nan)
    found = dist.threads(2, lambda: Checkpoint(tmp_path, "energies").read(dist.comm(), nothing))
    assert np.isnan(found).all() and not [*tmp_path.iterdir()]
