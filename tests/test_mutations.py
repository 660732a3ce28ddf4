"""``python -m conformance mutate --random``: what is drawn, which tests run, and what is reported."""

import ast
import subprocess
import time
from pathlib import Path

import pytest

from conformance import _campaign
from conformance._covering import Maps, covering
from conformance._draw import KINDS, Mutation, Source, draw, mutations
from conformance._equivalent import EQUIVALENT, listed, reason

MODULE = "pkg/area/module.py"
CODE = '''
"""A package of one module."""

LIMIT = 2**24


def scaled(a, factor=1, *, lower=True):
    """Not mutated: 1 < 2."""
    if factor > LIMIT:
        raise ValueError(f"factor {factor} is above {LIMIT + 1}")
    b = a.copy()
    check(b)
    b[0] = difference(factor, 2)
    return helper(b, lower=lower)


def helper(b, lower=False):
    return sorted(b) if lower else b


def check(b):
    if not b:
        raise ValueError("empty")


def difference(x, y):
    try:
        return x - y
    except TypeError as why:
        raise ValueError("no numbers") from why


def wait(n):
    while n:
        n -= 1
    return n
'''
TESTS = """
import pytest
from pkg.area.module import difference, scaled, wait

def test_scaled():
    a = [3, 1]
    assert scaled(a, 9) == [1, 7] and a == [3, 1]
    assert scaled(a, 9, lower=False) == [7, 1]

def test_limit():
    assert scaled([1], 2**24) == [2**24 - 2]
    for wrong in (2**24 + 1, 2**25):
        with pytest.raises(ValueError):
            scaled([1], wrong)

def test_wait():
    wait(3)
"""
LOOSE = "def test_nothing():\n    assert True\n"


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "pkg" / "area").mkdir(parents=True)
    (root / "tests" / "area").mkdir(parents=True)
    for file in ("pkg/__init__.py", "pkg/area/__init__.py"):
        (root / file).write_text("")
    (root / "pkg/area/module.py").write_text(CODE)
    (root / "tests/area/test_module.py").write_text(TESTS)
    (root / "tests/area/test_loose.py").write_text(LOOSE.encode().decode("unicode_escape"))
    return root


def drawn(root):
    return list(mutations(Source(root / MODULE, root)))


def running(pid):
    """Whether a process runs; one that has ended may remain as a zombie until its parent reads its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def judge(root, tmp_path, seconds=20.0):
    """``_campaign.judged`` with the tests of the project, planted in the project itself."""
    maps, groups = Maps(root, "pkg", tmp_path / "maps"), _campaign.tests_of(root, ["area"], MODULE)
    return lambda mutation, equivalent=None: _campaign.judged(mutation, root, maps, groups, seconds, equivalent or {})


def test_each_kind_is_drawn_and_each_mutation_is_another_program(project):
    path = project / MODULE
    found, before = drawn(project), ast.dump(ast.parse(CODE))
    assert {m.kind for m in found} == KINDS.keys()
    edits = {m.name.partition(": ")[2] for m in found}
    for edit in (
        "factor > LIMIT -> factor >= LIMIT", "2**24 -> (2 * (2**24))", "a.copy() -> a", "sorted(b) -> (b)",
        "helper(b, lower=lower) -> helper(b)", "difference(factor, 2) -> difference(2, factor)", "check(b) -> pass",
        "x - y -> (x + y)", "True -> False", 'raise ValueError("empty") -> pass', "not b -> (b)",
    ):  # fmt: skip
        assert edit in edits or edit == "True -> False", edit  # defaults of parameters are left
    for mutation in found:
        changed = mutation.applied(path.read_bytes()).decode()
        assert changed[mutation.start :].startswith(mutation.new)
        assert ast.dump(ast.parse(changed)) != before, mutation.name
    assert not any("Not mutated" in m.old and m.kind != "guard dropped" for m in found)
    assert not any("above" in m.old and m.kind not in ("exception swallowed", "guard dropped") for m in found)


def test_a_seed_draws_the_same_mutations_and_another_one_others(project):
    files = [project / MODULE]
    first, again, other = (draw(files, project, 12, seed) for seed in (1, 1, 2))
    assert first == again != other and len(set(first)) == 12
    every = draw(files, project, 10_000, 0)
    assert sorted(every) == sorted(drawn(project))  # no more than there are, each once


def test_the_map_names_the_tests_that_execute_a_line(project, tmp_path, capsys):
    own, loose = (path for group in _campaign.tests_of(project, ["area"], MODULE) for path in group)
    maps = Maps(project, "pkg", tmp_path / "maps")
    found = maps.of([own, loose])
    assert capsys.readouterr().out.count("mapping ") == 2

    def names(line, touching=True):
        place = Mutation("", MODULE, "", line, line, 0, 0, "", "")
        return {name.partition("::")[2] for _, name in covering(found, project, place, touching)}

    line_of = {text: i for i, text in enumerate(CODE.splitlines(), 1)}
    assert names(line_of["        n -= 1"]) == {"test_wait"}
    assert names(line_of["    b = a.copy()"]) == {"test_scaled", "test_limit"}
    assert names(line_of["LIMIT = 2**24"]) == {"test_scaled", "test_limit", "test_wait"}  # at the import: all
    assert names(line_of["LIMIT = 2**24"], touching=False) == set()
    assert Maps(project, "pkg", tmp_path / "maps").of([own, loose]) == found and not capsys.readouterr().out
    with (project / MODULE).open("a") as file:
        file.write("\n")
    assert names(line_of["        n -= 1"]) == {"test_scaled", "test_limit", "test_wait"}  # the lines may have moved


def test_tests_of_the_module_run_first_and_others_only_if_those_pass(project, tmp_path, capsys):
    groups = _campaign.tests_of(project, ["area"], MODULE)
    assert [[path.name for path in group] for group in groups] == [["test_module.py"], ["test_loose.py"]]
    of_name = {m.name.partition("module.py ")[2]: m for m in drawn(project)}
    maps = Maps(project, "pkg", tmp_path / "maps")
    for name, mapped in (
        ("helper: sorted(b) -> (b)", []),
        ('check: raise ValueError("empty") -> pass', ["mapping tests/area/test_loose.py"]),
    ):
        _campaign.judged(of_name[name], project, maps, groups, 20.0, {})
        assert capsys.readouterr().out.splitlines() == mapped


def test_tests_of_the_module_that_are_mapped_run_only_if_they_execute_the_line(project, tmp_path, monkeypatch):
    (own, _), runs = (groups := _campaign.tests_of(project, ["area"], MODULE)), []
    maps = Maps(project, "pkg", tmp_path / "maps")
    assert not maps.have(own)
    maps.of(own)
    assert maps.have(own)
    monkeypatch.setattr(_campaign, "failing", lambda copy, tests, seconds: runs.append(tests) or "")
    copied = next(m for m in drawn(project) if m.name.endswith("scaled: a.copy() -> a"))
    _campaign.judged(copied, project, maps, groups[:1], 20.0, {})
    assert sorted(runs[0]) == [f"tests/area/test_module.py::test_{name}" for name in ("limit", "scaled")]


def test_tests_of_a_module_may_name_its_folder_first(tmp_path):
    (folder := tmp_path / "tests" / "dist").mkdir(parents=True)
    for name in ("test_dist_grids.py", "test_grids_of_ranks.py", "test_other.py"):
        (folder / name).touch()
    own, near = _campaign.tests_of(tmp_path, ["dist"], "pkg/dist/_grids.py")
    assert [path.name for path in own] == ["test_dist_grids.py", "test_grids_of_ranks.py"]
    assert [path.name for path in near] == ["test_other.py"]


@pytest.mark.parametrize(
    "code, edit, why",
    [
        ("a.astype(t, copy=False)", "a.astype(t)", "speed"),
        ("a.astype(t, order=o, copy=False)", "a.astype(t, copy=False)", ""),
        ("eigh(\n    a,\n    check_finite=False,\n)", "eigh(a)", "speed"),
        ("zip(a, b, strict=True)", "zip(a, b)", "assertion"),
        ("each(a, b, strict=True)", "each(a, b)", ""),
        ("max(a, b)", "max(b, a)", "symmetric"),
        ("np.result_type(a, b)", "np.result_type(b, a)", "symmetric"),
        ("np.subtract(a, b)", "np.subtract(b, a)", ""),
        ("functools.lru_cache(maxsize=9)", "functools.lru_cache()", "speed"),
        ("x = 0.0", "(2 * 0.0)", "zero"),
        ("x = 1.0", "(2 * 1.0)", ""),
    ],
)
def test_what_no_test_can_kill_has_a_reason(tmp_path, code, edit, why):
    (path := tmp_path / "module.py").write_text(code)
    (found,) = [m for m in mutations(Source(path, tmp_path)) if m.new == edit]
    assert why in reason(found) and bool(why) == bool(reason(found))
    assert reason(found, {found.name: "a reason of its own"}) == (reason(found) or "a reason of its own")


def test_listed_mutations_are_of_the_code_as_it_is():
    """An entry whose code has changed says nothing any more."""
    root = Path(_campaign.__file__).parents[1]
    files = {name.partition(" ")[0] for name in EQUIVALENT}
    names = {mutation.name for file in files for mutation in mutations(Source(root / file, root))}
    assert not EQUIVALENT.keys() - names
    assert listed("why\n    a b: c -> d\n    e f: g -> h\n\nspeed: it\n    i j: k -> l\n") == {
        "a b: c -> d": "why", "e f: g -> h": "why", "i j: k -> l": "speed: it",
    }  # fmt: skip


def test_what_becomes_of_a_mutation_is_told(project, tmp_path):
    of_name = {m.name.partition("module.py ")[2]: m for m in drawn(project)}
    judged = judge(project, tmp_path)
    for killed, test in (
        ("scaled: a.copy() -> a", "test_scaled"), ("helper: sorted(b) -> (b)", "test_scaled"),
        ("module: 2**24 -> (2 * (2**24))", "test_limit"), ("scaled: factor > LIMIT -> factor >= LIMIT", "test_limit"),
    ):  # fmt: skip
        assert judged(of_name[killed]) == ("killed", f"tests/area/test_module.py::{test}")
    survived = judged(of_name['check: raise ValueError("empty") -> pass'])
    assert survived == ("survived", "the tests of its module passed, and 0 of 0 others that execute it passed")
    slow = of_name["wait: 1 -> (1 + 1)"]
    assert judged(slow, {slow.name: "speed: x"}) == ("only speed", "x")
    assert judged(slow, {slow.name: "a reason"}) == ("equivalent", "a reason")
    assert (project / MODULE).read_text() == CODE


def test_a_mutation_that_never_ends_is_killed_by_the_time_limit(project, tmp_path, monkeypatch):
    monkeypatch.setattr(_campaign, "START_S", 1.0)
    spins = next(m for m in drawn(project) if m.name.endswith("wait: 1 -> (1 + 1)"))  # 3, 1, -1, -3, ...
    assert judge(project, tmp_path, 1.0)(spins) == ("killed", "timeout")
    monkeypatch.setattr(_campaign, "failing", lambda *_: _campaign.TIMEOUT)
    assert judge(project, tmp_path)(spins) == (
        "not judged", "tests/area/test_module.py: no end without the mutation"
    )  # fmt: skip


def test_tests_that_wait_for_ever_are_ended_with_the_processes_that_they_started(project, tmp_path, monkeypatch):
    started, original = tmp_path / "started", subprocess.Popen.wait

    def wait(run, timeout=None):
        while timeout is not None:  # waiting ends as soon as the test waits, too
            if started.exists() and started.read_text():
                raise subprocess.TimeoutExpired(run.args, timeout)
            time.sleep(0.05)
        return original(run)

    (project / "tests/area/test_module.py").write_text(
        f"import pathlib, subprocess\n\ndef test_wait():\n    child = subprocess.Popen(['sleep', '1000'])\n"
        f"    pathlib.Path({str(started)!r}).write_text(str(child.pid))\n    child.communicate()\n"
    )
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    assert _campaign.failing(project, ["tests/area/test_module.py"], 20.0) == _campaign.TIMEOUT
    for _ in range(100):  # a killed process ends a little later
        if not running(int(started.read_text())):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the process that the test started still runs")


def test_a_test_that_fails_by_itself_kills_nothing(project, tmp_path):
    (project / "tests/area/test_module.py").write_text(TESTS.replace("[2**24 - 2]", "[0]"))
    mutation = next(m for m in drawn(project) if m.name.endswith("factor > LIMIT -> factor >= LIMIT"))
    outcome, detail = judge(project, tmp_path)(mutation)
    assert (outcome, detail.partition("::")[2]) == ("not judged", "test_limit fails without the mutation")


def test_the_command_prints_a_line_for_each_and_fails_if_one_survives(project, tmp_path, capsys):
    arguments = ["--area", "area", "--root", str(project), "--package", "pkg", "--cache", str(tmp_path / "maps")]
    (project / "tests/area/test_module.py").write_text(
        "from pkg.area import module\n\ndef test_loose():\n    module.wait(3)\n"
    )
    assert _campaign.main(["--random", "3", "--list", *arguments]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert _campaign.main(["--random", "2", *arguments, "--seed", "5"], {}) == _campaign.SURVIVED
    said = capsys.readouterr().out
    assert "1 SURVIVED: " in said and "2 SURVIVED: " in said
    assert said.splitlines()[-2:] == ["2 survived", "killed 0 of 2 that change results, 0 %"]


def test_a_campaign_goes_on_where_its_log_ends(project, tmp_path, capsys, monkeypatch):
    arguments = ["--area", "area", "--root", str(project), "--package", "pkg", "--log", str(log := tmp_path / "log")]
    outcomes = iter([("survived", "0 of 0"), ("killed", "tests/x.py::test_x[a - b]"), ("killed", "timeout")])
    monkeypatch.setattr(_campaign, "judged", lambda *_: next(outcomes))
    assert _campaign.main(["--random", "2", *arguments]) == _campaign.SURVIVED
    first = capsys.readouterr().out.splitlines()
    assert first[4:] == [
        "area: 1 killed, 1 survived", "1 killed, 1 survived", "killed 1 of 2 that change results, 50 %"
    ]  # fmt: skip
    assert log.read_text().splitlines() == first[:4]
    assert _campaign.main(["--random", "2", *arguments]) == 0  # the survivor is judged again, and nothing else
    again = capsys.readouterr().out.splitlines()
    assert again[0] == first[0].replace("SURVIVED", "killed") and again[1].endswith(": timeout")
    assert again[2:] == ["area: 2 killed", "2 killed", "killed 2 of 2 that change results, 100 %"]
    assert log.read_text().splitlines() == first[:4] + again[:2]


def test_the_name_of_a_failing_test_may_have_spaces(project):
    (project / "tests/area/test_module.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('x', [0], ids=['two words'])\n"
        "def test_x(x):\n    assert x, 'no - no'\n"
    )
    name = "tests/area/test_module.py::test_x[two words]"
    assert _campaign.failing(project, ["tests/area/test_module.py"], 20.0) == name


@pytest.mark.parametrize("code, failed", [(pytest.ExitCode.NO_TESTS_COLLECTED, ""), (2, "pytest ended with 2")])
def test_a_run_that_selects_no_test_kills_nothing(project, monkeypatch, code, failed):
    (python := project / "python").write_text(f"#!/bin/sh\nexit {int(code)}\n")
    python.chmod(0o700)
    monkeypatch.setattr(_campaign.sys, "executable", str(python))
    assert _campaign.failing(project, ["tests/area/test_module.py"], 20.0) == failed
