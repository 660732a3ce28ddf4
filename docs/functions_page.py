"""The page that lists every accelerated function: whether it has a device path, its CPU fast path, its thresholds."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import scipy.sparse

import trnpy
import trnpy.sparse
from nkisim.hardware import ERROR_FACTOR
from trnpy._call.dispatch import Op, Reason, accelerated
from trnpy._call.rows import rows as rows_of
from trnpy.chem import pyscf_patch
from trnpy.linalg import _blas_rows, _lapack_rows

MACHINES = ("trn1", "trn2", "trn3")
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
DTYPES = ("float32", "float64", "complex64", "complex128")
ROUTE_SIZE = 300  # rows of the operands for which host routes are asked
MANUALS = {
    "numpy": "https://numpy.org/doc/stable/reference/generated/{}.html",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated/{}.html",
}

# Arguments of a typical call: what is done with a square matrix ``a`` of n rows.
CALLS: dict[str, Callable[[np.ndarray], tuple]] = {
    **dict.fromkeys(("matmul", "dot", "inner", "kron", "solve", "solve_triangular"), lambda a: (a, a)),
    "lstsq": lambda a: (a[:, : len(a) // 8], a[:, 0]),
    "tensordot": lambda a: (a, a, 1),
    "einsum": lambda a: ("ij,jk->ik", a, a),
    "multi_dot": lambda a: ([a, a, a],),
    "khatri_rao": lambda a: (a[:64], a[:64]),
    "cho_solve": lambda a: ((a, True), a),
    "lu_solve": lambda a: ((a, np.arange(len(a), dtype=np.int32)), a),
    "fractional_matrix_power": lambda a: (a, 0.5),
    "matrix_power": lambda a: (a, 5),
    "norm": lambda a: (a, 2),
}
# Sections that state how accurate a function is; the first that is found in its name.
ACCURACY = (
    ("eigh", "spectra.md#eigenproblems"), ("eigvalsh", "spectra.md#eigenproblems"), ("cho", "systems.md#cholesky"),
    ("lu", "systems.md#lu-and-solving"), ("lstsq", "systems.md#qr-and-least-squares"),
    ("slogdet", "systems.md#lu-and-solving"), ("det", "systems.md#lu-and-solving"),
    ("solve_triangular", "systems.md#triangular-systems"), ("solve", "systems.md#lu-and-solving"),
    ("pinv", "spectra.md#singular-values"), ("inv", "systems.md#inverses"), ("qr", "systems.md#qr-and-least-squares"),
    ("svd", "spectra.md#singular-values"), ("polar", "spectra.md#singular-values"),
    ("orth", "spectra.md#singular-values"), ("null_space", "spectra.md#singular-values"),
    ("cond", "spectra.md#singular-values"), ("norm", "spectra.md#singular-values"),
    ("matrix_rank", "spectra.md#singular-values"),
    ("expm", "matfun.md#matrix-exponential"), ("sqrtm", "matfun.md#definite-matrices"),
    ("logm", "matfun.md#definite-matrices"), ("fractional", "matfun.md#definite-matrices"),
    ("", "digits.md#certificate"),
)  # fmt: skip
# Arguments of BLAS and LAPACK functions, by their names without the prefix of a dtype.
ROUTINES: Mapping[str, Callable[[np.ndarray], tuple]] = {
    **dict.fromkeys(("gemm", "symm", "hemm", "syr2k", "her2k", "trmm", "trsm"), lambda a: (1.0, a, a)),
    **dict.fromkeys(("syrk", "herk"), lambda a: (1.0, a)),
    **dict.fromkeys(("syevd", "heevd", "potrf", "getrf"), lambda a: (a,)),
    **dict.fromkeys(("sygvd", "hegvd", "posv", "gesv"), lambda a: (a, a)),
}
PREFIXES = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
SOLVER_CALLS: Mapping[str, Callable[..., tuple]] = {
    "scipy.sparse.matmul": lambda a, x: (a, x),
    **dict.fromkeys(("scipy.sparse.linalg.cg", "scipy.sparse.linalg.gmres"), lambda a, x: (a, x[:, 0])),
    **dict.fromkeys(("scipy.sparse.linalg.eigsh",), lambda a, x: (a, 4)),
    "scipy.sparse.linalg.lobpcg": lambda a, x: (a, x),
    "scipy.sparse.linalg.expm": lambda a, x: (a.toarray(),),
    "scipy.sparse.linalg.expm_multiply": lambda a, x: (a.toarray(), x),
}
PYSCF = {
    "pyscf.lib.numpy_helper.einsum": "contractions, as `numpy.einsum`",
    "pyscf.lib.numpy_helper.contract": "contractions of two operands",
    "pyscf.lib.numpy_helper.dot": "matrix products, real or complex",
    "pyscf.lib.numpy_helper.ddot": "matrix products, real",
    "pyscf.lib.numpy_helper.zdot": "matrix products, complex",
    "pyscf.lib.numpy_helper._dgemm": "matrix products of blocks of larger arrays",
    "pyscf.scf.hf.eig": "the generalized eigenproblem of an SCF cycle",
    "pyscf.df.df_jk.get_jk": "J and K of density-fitted SCF and DFT",
    "pyscf.mp.dfmp2.kernel": "DF-MP2 energies and amplitudes",
    "pyscf.mp.dfump2.kernel": "DF-MP2 energies, unrestricted",
    "pyscf.cc.ccsd._contract_vvvv_t2": "the particle-particle ladder of CCSD, CISD and QCISD",
    "pyscf.cc.dfccsd._contract_vvvv_t2": "the same for density-fitted CCSD",
}


class Found:
    """The decisions on typical calls of one function."""

    def __init__(self, op: Op, dtypes: tuple[str, ...] = DTYPES, arguments: Callable | None = None) -> None:
        self.function, self.short = accelerated(op), op.name.rpartition(".")[2]
        self.arguments = arguments or CALLS.get(self.short, lambda a: (a,))
        self.paths = {dtype: self.path(dtype) for dtype in dtypes}
        self.least = {
            (machine, dtype): self.break_even(machine, dtype)
            for machine in MACHINES
            for dtype in ("float32", "float64")
            if dtype in self.paths and self.paths[dtype][0] == "yes"
        }

    def decision(self, n: int, dtype: str, make: Callable[[int, str], np.ndarray], **policy) -> trnpy.Decision:
        with trnpy.policy(**policy):
            return trnpy.explain(self.function, *self.arguments(make(n, dtype)))

    def path(self, dtype: str) -> tuple[str, str]:
        """Whether there is a device path for a dtype, or why not; and the route on the host."""
        forced = self.decision(ROUTE_SIZE, dtype, definite, device="null", force=True)
        plain = self.decision(ROUTE_SIZE, dtype, definite, device="none")
        device = "yes" if forced.on_device else "no" if forced.reason is Reason.ROUTE else f"no: {forced.detail}"
        return device, plain.route if plain.reason is Reason.ROUTE else ""

    def break_even(self, machine: str, dtype: str) -> int | None:
        """The fewest rows of SIZES for which the call goes to the machine; None if there are none."""

        def gone(n: int) -> bool:
            return self.decision(n, dtype, plain, device="null", machine=machine).on_device

        at = bisect.bisect_left(SIZES, True, key=gone)
        return SIZES[at] if at < len(SIZES) else None


@functools.cache
def definite(n: int, dtype: str) -> np.ndarray:
    """A positive definite matrix of condition below 10."""
    rng = np.random.default_rng(0)
    b = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype.startswith("c") else 0)
    return (b @ b.conj().T + 4 * n * np.eye(n)).astype(dtype)


@functools.cache
def plain(n: int, dtype: str) -> np.ndarray:
    """The identity: decisions read shapes, and routes the diagonal."""
    return np.eye(n, dtype=dtype)


def functions_page(found: Mapping[str, Found]) -> str:
    """A box for each accelerated function of a dense matrix, and tables of all others."""
    lines = [
        "# Functions",
        "",
        "This page lists every accelerated function, from the tables that trnpy itself uses. All other names of",
        "`scipy.linalg`, `scipy.sparse` and `numpy.linalg` are NumPy's and SciPy's own functions.",
        "",
        "- **device**: whether kernels compute such a call if it is large enough or forced. Results are",
        "  [checked](../checks.md#the-check-of-a-result). float64 and complex128 use",
        "  [integer slices](../digits.md#digits) with an [a-priori error bound](../digits.md#certificate).",
        f"- **CPU fast path**: the algorithm that replaces the original one without a device, at {ROUTE_SIZE} rows.",
        "- **from**: the fewest rows (of 128, 256, ... 8192) of a square operand for which a call runs on one core",
        "  (for `lstsq` with an eighth as many columns); - if none of these does. The figure is modelled, for float32",
        "  and float64, against the default rates of one host without calibration. The model is within a factor of",
        f"  {ERROR_FACTOR:g} for nine of ten measurements. `trnpy.explain` answers for your own operands and host.",
        "",
    ]
    package = ""
    for name, one in found.items():
        if (top := name.rpartition(".")[0]) != package:
            package = top
            lines += [f"## {'NumPy, products' if top == 'numpy' else top}", ""]
        lines += box(name, one)
    return "\n".join([*lines, *sparse_table(), *routines_table(), *pyscf_table()]) + "\n"


def box(name: str, one: Found) -> list[str]:
    """What one function does for each dtype."""
    library = name.partition(".")[0]
    section = next(section for part, section in ACCURACY if part in one.short)
    public = f"trnpy.{one.short}" if name.count(".") == 1 else f"trnpy.linalg.{one.short}"
    if name.startswith("numpy.linalg"):
        public = f"`{name}` under `trnpy.patched()`"
    else:
        public = f"`{public}`"
    lines = [
        f"### {name}",
        "",
        f"{public}, with the signature and results of [{name}]({MANUALS[library].format(name)}).",
        f"[Accuracy](../{section}).",
        "",
        "| dtype | device | CPU fast path | from: trn1 | trn2 | trn3 |",
        "|---|---|---|---|---|---|",
    ]
    for dtype, (device, route) in one.paths.items():
        sizes = [f"{one.least[machine, dtype] or '-'}" if (machine, dtype) in one.least else "" for machine in MACHINES]
        lines.append(f"| {dtype} | {device} | {route} | {' | '.join(sizes)} |")
    return [*lines, ""]


def sparse_table() -> Iterator[str]:
    """Sparse products and solvers, for a matrix of full 128 x 128 blocks."""
    yield from (
        "## Sparse matrices",
        "",
        "The device multiplies blocks of 128 x 128. A call is predicted to gain if its blocks are full and the matrix",
        "stays on the device; [the page on sparse matrices](../sparse.md#sparse-solvers) has the numbers of blocks.",
        "",
        "| function | device |",
        "|---|---|",
    )
    for op in (*rows_of("scipy.sparse"), *rows_of("scipy.sparse.linalg")):
        with trnpy.policy(device="null", force=True):
            forced = trnpy.explain(accelerated(op), *SOLVER_CALLS[op.name](*full_blocks(2, "float64")))
        yield f"| `{op.name}` | {'yes' if forced.on_device else f'no: {forced.detail}'} |"
    yield ""


@functools.cache
def full_blocks(rows: int, dtype: str) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """A definite matrix whose 128 x 128 blocks are all full, and 16 right-hand sides."""
    return scipy.sparse.csr_array(definite(128 * rows, dtype)), np.ones((128 * rows, 16), dtype)


def routines_table() -> Iterator[str]:
    """Functions of BLAS and LAPACK, one line for each operation."""
    yield from (
        "## BLAS and LAPACK",
        "",
        "`trnpy.linalg.blas`, `trnpy.linalg.lapack` and their `get_blas_funcs` and `get_lapack_funcs`, with f2py's",
        "arguments. **from**, as above: rows of square operands, on one core of a trn2 (modelled).",
        "",
        "| functions | device | from, float32 | from, float64 |",
        "|---|---|---|---|",
    )
    for package, ops in (("blas", _blas_rows.OPS), ("lapack", _lapack_rows.OPS)):
        kinds: dict[str, list[Op]] = {}
        for op in ops:
            kinds.setdefault(op.name.rpartition(".")[2][1:], []).append(op)
        for kind, variants in kinds.items():
            names = [op.name.rpartition(".")[2] for op in variants]
            both = [Found(op, (PREFIXES[n[0]],), ROUTINES[kind]) for op, n in zip(variants, names, strict=True)]
            devices = {path[0] for one in both for path in one.paths.values()}
            least = {
                n[0]: f.least.get(("trn2", PREFIXES[n[0]])) for n, f in zip(names, both, strict=True) if n[0] in "sd"
            }
            cells = [str(least.get(prefix) or "-") if prefix in least else "" for prefix in "sd"]
            listed = ", ".join(f"`{package}.{name}`" for name in names)
            yield f"| {listed} | {'; '.join(sorted(devices))} | {' | '.join(cells)} |"
    yield ""


def pyscf_table() -> Iterator[str]:
    """Functions of PySCF; a new one needs a line in PYSCF."""
    yield from (
        "## PySCF",
        "",
        "Under `python -m trnpy` and `trnpy.chem.patch_pyscf()` ([chemistry](../start/chemist.md)).",
        "",
        "| function | computes |",
        "|---|---|",
    )
    for name in pyscf_patch.rows():
        yield f"| `{name}` | {PYSCF[name]} |"
