"""NKI kernels in families, one per file, each with a NumPy reference implementation; only runtimes import them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from trnpy._base.records import record

FOLDER = Path(__file__).resolve().parent
FAMILIES = {
    "products": "abs_bound axpby batched_matmul float64_matmul digits_split float64_digits float64_round matmul probes "
    "syrk transpose words_matmul words_sum",
    "spectra": "jacobi_sweep orthonormal_polar polynomial_sign projected_matrix",
    "solves": "cg_iterations gmres_steps trsm",
    "sparse": "bsr_spmm bsr_transpose_spmm csr_spmm",
    "chem": "ao_to_mo mp2_energy schwarz_screened_spmm",
    "ranks": "exchange",
}
_FAMILY = {file: family for family, files in FAMILIES.items() for file in files.split()}


@record()
class Budget:
    """Limits of compiling a kernel for its largest launch, extents of 8192 (tests/_nki/kernels/test_budget.py)."""

    instructions: int = 50_000
    regions: int = 5  # device loops, one for the blocks of each size
    seconds: float = 80.0  # modelled from published compile times of up to 160,000 instructions


BUDGETS: Mapping[str, Budget] = MappingProxyType(
    {
        "trsm": Budget(75_000),  # rows of blocks have unequal lengths and therefore no loop
        "syrk": Budget(75_000),
    }
)


def budget(name: str) -> Budget:
    """The limits of compiling the kernel ``name``."""
    return BUDGETS.get(name, Budget())


def located(name: str) -> tuple[str, str]:
    """The module and the function of the kernel ``name``, or ``file.name`` if a file has several; else KeyError.

    The module of its reference implementation has the same name with the suffix ``_reference``.
    """
    file, _, function = name.rpartition(".")
    file = file or function
    if file not in _FAMILY:
        raise KeyError(f"kernel {name!r}: there is no file {file}.py in a folder of {FOLDER}")
    return f"{__name__}.{_FAMILY[file]}.{file}", function


def source(name: str) -> Path:
    """The file of the kernel ``name``."""
    module, _ = located(name)
    return FOLDER.joinpath(*module.split(".")[-2:]).with_suffix(".py")
