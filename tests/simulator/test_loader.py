"""Tests of loading kernel files: unmodified, private, thread-safe, with their own lines in errors."""

import inspect
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest

from nkisim.chip.errors import SimulatorError
from nkisim.run import neuron_dtypes
from nkisim.run.launch import Kernel, simulate
from nkisim.run.loader import load, load_kernel
from tests.simulator.kernels import KERNELS


def write(tmp_path, source, name="kernel.py"):
    path = tmp_path / name
    path.write_text(source)
    return path


def test_a_kernel_file_runs_unmodified():
    kernel = load_kernel(KERNELS / "matmul.py")
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 8, (256, 128)).astype(np.float32), rng.integers(-8, 8, (256, 512)).astype(np.float32)
    np.testing.assert_array_equal(simulate(kernel)(a, b), a.T @ b)


def test_loading_leaves_nothing_in_sys_modules():
    before = set(sys.modules)
    load(KERNELS / "gather.py")
    added = {name for name in set(sys.modules) - before if not name.startswith("trnpy.")}
    assert not {name for name in added if name.partition(".")[0] in ("nki", "shapes", "gather")}


def test_importing_trnpy_imports_no_simulator():
    code = "import sys, trnpy; print([m for m in sys.modules if 'simulator' in m or m == 'ml_dtypes'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_form_of_import_gives_the_simulator(tmp_path):
    path = write(
        tmp_path,
        "import nki\nimport nki.isa\nimport nki.language as nl\nfrom nki import isa as nisa\n"
        "from nki.language import NkiTensor, float32\nfrom nki.isa import nc_matmul\nimport nki.typing as nt\n"
        "import os.path\nsame = nki.isa.nc_matmul is nc_matmul and nki.language is nl\nx = os.path.join('a', 'b')\n",
    )
    module = load(path)
    assert module.same and module.float32 == "float32" and module.x == "a/b"
    assert module.nt.tensor is module.NkiTensor


def test_kernel_files_import_each_other():
    module = load(KERNELS / "gather.py")
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    rows = np.array([[3], [0], [3]], np.int32)
    np.testing.assert_array_equal(simulate(module.gather)(table, rows), table[[3, 0, 3]])


def test_a_kernel_loads_in_many_threads_at_once():
    modules, errors = [], []

    def one():
        try:
            modules.append(load(KERNELS / "gather.py"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and len({id(m) for m in modules}) == 8


def test_tracebacks_show_the_lines_of_the_kernel_file(tmp_path):
    path = write(tmp_path, "import nki\n\n@nki.jit\ndef broken(x):\n    y = x.shape[0]\n    return y / 0\n")
    with pytest.raises(SimulatorError, match=r"broken \(kernel.py:6\): ZeroDivisionError") as caught:
        simulate(load(path).broken)(np.ones((2, 2), np.float32))
    shown = "".join(traceback.format_exception(caught.value.__cause__))
    assert "return y / 0" in shown and 'kernel.py", line 6' in shown


def test_a_helper_in_another_file_is_blamed_on_the_line_that_failed(tmp_path):
    write(tmp_path, "import nki.language as nl\ndef make():\n    return nl.ndarray((256, 2), nl.float32)\n", "lib.py")
    path = write(tmp_path, "import nki\nfrom lib import make\n@nki.jit\ndef k(x):\n    return make()\n")
    with pytest.raises(SimulatorError, match=r"k \(lib.py:3\): .*partitions") as caught:
        simulate(load(path).k)(np.ones((2, 2), np.float32))
    assert caught.value.rule == 12


def test_jit_is_that_of_0_6(tmp_path):
    path = write(
        tmp_path,
        "import nki\n@nki.jit()\ndef a(x):\n    return x\n@nki.jit\ndef b(x):\n    return a(x)\n",
    )
    module = load(path)
    assert isinstance(module.a, Kernel) and module.a[2].lnc == 2
    with pytest.raises(SimulatorError, match=r"b \(kernel.py:7\).*decorated with nki.jit"):
        module.b(np.ones((2, 2), np.float32))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "is not Python"),
        ("import neuronxcc.nki as nki\n", "neuronxcc"),
        ("import nki.compiler\n", "nki.compiler is not a module"),
        ("import nki\n@nki.jit(mode='simulation')\ndef f(x):\n    return x\n", r"jit\(mode"),
        ("import nki\n@nki.jit(platform_target='trn1')\ndef f(x):\n    return x\n", r"jit\(platform_target"),
    ],
)
def test_a_file_that_cannot_load_says_why(tmp_path, source, message):
    with pytest.raises(SimulatorError, match=message):
        load(write(tmp_path, source))


def test_names_of_earlier_versions_that_kernels_still_say_are_taken(tmp_path):
    path = write(
        tmp_path,
        "import inspect\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\nimport neuron_dtypes as dt\n"
        "import neuronxcc.nki.typing as nt\nfrom nki.isa.constants import oob_mode\nimport nki.dtype\n"
        "@nki.jit(mode='trace', debug_kernel=True)\n"
        "def kernel(x: nt.mutable_tensor, dtype: nki.dtype = nl.bfloat16, *, scale=2.0):\n    'Same x.'\n    return x\n"
        "same = oob_mode is nisa.oob_mode and nki.dtype.float32 == nl.float32 and dt.sizeinbytes(nl.bfloat16) == 2\n"
        "absent = hasattr(nisa, 'no_such_instruction') or hasattr(nl, 'no_such_name')\n",
    )
    module = load(path)
    assert module.same and not module.absent
    assert list(inspect.signature(module.kernel).parameters) == ["x", "dtype", "scale"]
    assert module.kernel.__doc__ == module.kernel[2].__doc__ == "Same x."
    assert Kernel.__doc__.startswith("The result of ``nki.jit``")
    assert inspect.getsource(module.kernel).startswith("@nki.jit(mode='trace'")
    with pytest.raises(SimulatorError, match=r"nisa\.no_such_instruction is not an instruction"):
        _ = module.nisa.no_such_instruction


def test_packed_types_go_through_neuron_dtypes_and_back():
    values = np.array([[0.5, -1.0, 2.0, 4.0, 6.0, 0.0, 1.5, -3.0]], np.float32)
    for name in ("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"):
        packed = neuron_dtypes.static_cast(values, name)
        assert packed.shape == (1, 2) and name in str(packed.dtype)
        np.testing.assert_array_equal(neuron_dtypes.static_cast(packed, np.float32), values)
        assert simulate(lambda x: x)(packed).dtype.itemsize == packed.dtype.itemsize
    assert neuron_dtypes.static_cast(values * 100, np.int8).max() == 127


def test_a_file_loads_again_and_finds_its_own_source(tmp_path):
    path = write(tmp_path, "import inspect\ntext = inspect.getsource(inspect.getmodule(inspect.currentframe()))\n")
    assert load(path).text == load(path).text == path.read_text()


def test_a_package_without_init_files_above_is_found_by_its_full_name(tmp_path):
    core = tmp_path / "outer" / "inner" / "core"
    core.mkdir(parents=True)
    for folder in (core.parent, core):
        (folder / "__init__.py").write_text("")
    write(core, "import nki.language as nl\nWIDTH = 5\n", "sizes.py")
    (core / "__init__.py").write_text("from .sizes import WIDTH\n")
    path = write(core, "from outer.inner.core.sizes import WIDTH\nfrom . import sizes\nfrom .sizes import WIDTH as W\n")
    assert load(path).WIDTH == load(path).W == load(core / "__init__.py").WIDTH == 5


def test_a_kernel_is_found_by_name(tmp_path):
    path = write(tmp_path, "import nki\n@nki.jit\ndef a(x):\n    return x\ndef plain(x):\n    return x\n")
    assert load_kernel(path).__name__ == "a" and load_kernel(path, "plain").__name__ == "plain"
    with pytest.raises(SimulatorError, match="no kernel named z"):
        load_kernel(path, "z")
    with pytest.raises(SimulatorError, match="3 kernels"):
        load_kernel(KERNELS / "gather.py")
    with pytest.raises(SimulatorError, match="cannot read"):
        load(tmp_path / "absent.py")


def test_calling_a_kernel_directly_runs_the_simulator():
    a = np.ones((128, 128), np.float32)
    np.testing.assert_array_equal(
        load_kernel(KERNELS / "matmul.py")(a, np.ones((128, 512), np.float32)), np.full((128, 512), 128)
    )


def test_classes_of_a_kernel_file_carry_tensors_and_settings(tmp_path):
    path = write(
        tmp_path,
        """from __future__ import annotations
from dataclasses import dataclass
from enum import Enum
import nki
import nki.isa as nisa
import nki.language as nl

class Side(Enum):
    left = 1
    right = 2

class Pair(nl.NKIObject):
    first: object
    second: object
    side: Side = Side.left

    def chosen(self):
        return self.first if self.side == Side.left else self.second

@dataclass
class Wrapped(nl.NKIObject):
    pair: Pair
    scale: float = 3.0

@nki.jit
def scaled(wrapped):
    source = wrapped.pair.chosen()
    tile = nl.ndarray(source.shape, source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=wrapped.scale)
    out = nl.ndarray(source.shape, source.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
""",
    )
    module = load(path)
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    for side, expected in ((module.Side.left, a), (module.Side.right, b)):
        pair = module.Pair(a, b, side=side)
        np.testing.assert_array_equal(simulate(module.scaled)(module.Wrapped(pair)), 3 * expected)
        assert pair.first is a  # the caller's object keeps its arrays
    assert module.Pair(a, b).side == module.Side.left
    with pytest.raises(TypeError, match="Pair"):
        module.Pair(a, b, third=1)


def test_a_kernel_of_a_package_imports_relatively(tmp_path):
    package = tmp_path / "library"
    for folder in (package, package / "core", package / "tools"):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    (package / "tools" / "__init__.py").write_text("ANSWER = 42\n")
    write(package / "tools", "def twice(n):\n    return 2 * n\n", "numbers.py")
    write(package / "tools", "import nki.language as nl\nDTYPE = nl.float32\n", "dtypes.py")
    path = write(
        package / "core",
        "import nki\nfrom ..tools.numbers import twice\nfrom ..tools import ANSWER, dtypes\nfrom . import other\n"
        "import library.tools.numbers as again\nvalue = (twice(3), ANSWER, dtypes.DTYPE, other.X, again.twice(1))\n",
    )
    write(package / "core", "X = 5\n", "other.py")
    assert load(path).value == (6, 42, "float32", 5, 2)
    assert not [name for name in sys.modules if name.startswith("library")]
