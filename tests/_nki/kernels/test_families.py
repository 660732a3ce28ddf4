"""A kernel's file is found by the kernel's name, whatever family it is in."""

import importlib

import pytest

from trnpy._nki.kernels import FAMILIES, FOLDER, located, source


def test_every_file_with_kernels_is_in_the_table_once_with_its_twin():
    files = {p.relative_to(FOLDER).with_suffix("") for p in FOLDER.rglob("*.py") if "@nki.jit" in p.read_text()}
    named = [f"{family}/{file}" for family, names in FAMILIES.items() for file in names.split()]
    assert sorted(named) == sorted(map(str, files))
    for name in named:
        module, function = located(name.rpartition("/")[2])
        assert importlib.import_module(f"{module}_reference") and function == name.rpartition("/")[2]


def test_a_kernel_of_a_file_with_several_names_both():
    assert located("probes.rounding") == ("trnpy._nki.kernels.products.probes", "rounding")
    assert source("probes.rounding") == source("probes") == FOLDER / "products" / "probes.py"
    with pytest.raises(KeyError, match=r"absent\.py"):
        located("absent")
