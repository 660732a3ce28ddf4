"""Files read in pieces: each rank its own range."""

import numpy as np
import pytest

from trnpy import dist

WHOLE = np.random.default_rng(2).random((7, 10))


def read(ranks, *args):
    """What the ranks read together, and how large their pieces are."""

    def program():
        s = dist.load(*args)
        return dist.gather(s), s.local.size

    found = dist.threads(ranks, program)
    return found[0][0], [size for _, size in found]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_are_read_in_pieces(tmp_path, ranks, axis, order):
    np.save(tmp_path / "a.npy", np.asarray(WHOLE, order=order))
    found, sizes = read(ranks, tmp_path / "a.npy", axis)
    np.testing.assert_array_equal(found, WHOLE)
    assert sum(sizes) == WHOLE.size
    assert max(sizes) - min(sizes) <= max(WHOLE.shape)


@pytest.fixture
def file(tmp_path):
    h5py = pytest.importorskip("h5py", reason="HDF5 files need h5py, which is not installed")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        for n, (i, j) in enumerate(zip(range(0, 10), range(1, 11), strict=True)):
            file[f"j3c/{n + 2}"] = WHOLE[:, i:j]  # 2 ... 11: their order is not that of the letters
        file["deeper/inside/x"] = WHOLE
    return tmp_path / "b.h5"


@pytest.mark.parametrize("name", ["j3c", "deeper", "deeper/inside/x"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranks", [1, 3])
def test_hdf5_files_are_read_in_pieces(file, name, axis, ranks):
    found, sizes = read(ranks, file, axis, name)
    np.testing.assert_array_equal(found, WHOLE)
    assert sum(sizes) == WHOLE.size


def test_a_file_with_several_datasets_asks_for_a_name(file):
    with pytest.raises(ValueError, match="deeper, j3c: expected name="):
        dist.load(file)


def test_a_file_of_pyscf_is_read_in_pieces(tmp_path):
    pytest.importorskip("h5py", reason="PySCF's files need h5py, which is not installed")
    df = pytest.importorskip("pyscf.df", reason="PySCF is not installed")
    gto = pytest.importorskip("pyscf.gto", reason="PySCF is not installed")
    molecule = gto.M(atom="O 0 0 0; H 0 0.76 0.59; H 0 -0.76 0.59", basis="sto-3g", verbose=0)
    fitted = df.DF(molecule)
    fitted._cderi_to_save = str(tmp_path / "b.h5")
    fitted.max_memory = 0
    fitted.build()
    whole = np.vstack(list(fitted.loop()))
    found, _ = read(3, tmp_path / "b.h5", 0, "j3c")
    np.testing.assert_array_equal(found, whole)
