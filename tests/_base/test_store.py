"""Files in the user's cache: whatever stands there, a call goes on without it and the reason is kept."""

import json
import os

import platformdirs
import pytest

from trnpy._base import store
from trnpy._settings import host_rates
from trnpy._settings.host_rates import KINDS, HostRates, machine_id

KEY = "this machine"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept.json"


def read(path, key=KEY):
    return store.read(path, key, lambda content: content)


def test_what_is_written_is_read_and_nobody_else_may_read_it(path):
    assert read(store.write(path, {"n": [1, 2.5, None]}, KEY)) == store.Stored({"n": [1, 2.5, None]})
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("replaced", [False, True])
def test_an_interrupt_is_raised_and_leaves_no_other_file(path, replaced, monkeypatch):
    right = os.replace

    def interrupted(*names):
        if replaced:
            right(*names)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(path, 1, KEY)
    assert list(path.parent.iterdir()) == [path] * replaced


def test_no_file_is_no_reason(path):
    assert read(path) == read(path / "below" / "a file") == store.Stored(None)


def test_what_another_machine_kept_is_ignored(path):
    store.write(path, 1, KEY)
    assert read(path, "another").ignored == f"{path} is for {KEY}, not another"


DAMAGE = {
    "empty": "",
    "half": '{"schema": 1, "key"',
    "no frame": "[]",
    "not text": "\x00\xff",
    "deep": "[" * 10**5,
    "older": json.dumps({"curves": {}}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_ignored_for_a_reason(path, damage):
    path.write_bytes(DAMAGE[damage].encode("latin1"))
    found = read(path)
    assert found.content is None and found.ignored.startswith(f"{path} is not what trnpy writes (")


def test_one_digit_that_changed_is_noticed(path):
    store.write(path, {"rate": 12345}, KEY)
    path.write_text(path.read_text().replace("12345", "12346"))
    assert "damaged" in read(path).ignored


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_regular_file_is_not_waited_for(path, make):
    make(path)
    assert "is not what trnpy writes" in read(path).ignored


def test_a_file_beyond_all_measure_is_not_read(path):
    with open(path, "wb") as file:
        file.truncate(store.LARGEST + 1)
    assert f"{store.LARGEST + 1} bytes" in read(path).ignored


POINTS = {
    "zero": [[32.0, 0.0]],
    "infinite": [[32.0, float("inf")]],
    "nan": [[32.0, float("nan")]],
    "text": [[32.0, "fast"]],
    "truth": [[32.0, True]],
    "none": [],
    "order": [[64.0, 1e9], [32.0, 1e9]],
}


@pytest.mark.parametrize("name", POINTS)
def test_rates_that_no_host_has_are_ignored(name):
    machine = machine_id()
    curves = dict.fromkeys(KINDS, ((32.0, 1e9),))
    host_rates.save(HostRates(curves, 1e10, True, machine))
    assert host_rates.current_rates().calibrated
    store.write(
        host_rates.path(machine), {"curves": curves | {"eigh": POINTS[name]}, "copy_bytes_per_s": 1e10}, machine
    )
    host_rates.current_rates.cache_clear()
    assert not host_rates.current_rates().calibrated
    assert "is not what trnpy writes" in host_rates.stored(machine).ignored


@pytest.mark.parametrize("given", [None, "", "/var/tmp/somewhere", "relative"])
def test_the_folder_is_that_of_platformdirs(given, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert str(store.folder()) == platformdirs.user_cache_dir("trnpy")
