"""Reports as files: replaced whole or not at all, private, and with any name."""

import json
import os
import stat

import ledgers
import pytest

from trnpy._report.ledger import Ledger


def test_files_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")

    def fail(*args):
        raise OSError("disk full")

    with monkeypatch.context() as m:
        m.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            ledgers.small().to_json(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["run.json"]
    link, new = tmp_path / "link.json", tmp_path / "new.json"
    link.symlink_to(path)
    ledgers.small().to_json(link)
    assert link.is_symlink() and json.loads(path.read_text())["schema"]
    ledgers.small().to_json(new)
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    new.chmod(0o640)
    ledgers.small().to_html(new)
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


def test_writing_to_a_device_file_does_not_replace_it():
    ledgers.small().to_json("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_names_that_are_no_unicode_do_not_lose_the_report(tmp_path):
    ledger = Ledger("caf\udce9.py", opened=0.0)
    ledger.add(ledgers.decision("numpy.dot", 1.0, 2.0), 0.0, 1.0, ledgers.frame("/tmp/caf\udce9.py", 3))
    ledger.to_html(tmp_path / "run.html")
    ledger.to_json(tmp_path / "run.json")
    assert r"caf\udce9.py" in (tmp_path / "run.html").read_text()
