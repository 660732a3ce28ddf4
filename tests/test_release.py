"""What a release consists of: versions and dates that agree, a short changelog, links that work on PyPI."""

import pathlib
import re
import subprocess
import sys
import tomllib

import yaml

import trnpy

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]


def metadata(folder):
    """The metadata that a build writes, PyPI's page included."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return (folder / "trnpy_nki.egg-info" / "PKG-INFO").read_text()


def test_versions_and_dates_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert (newest[1], newest[2]) == (citation["version"], str(citation["date-released"]))
    assert newest[1] == trnpy.__version__


def test_the_changelog_of_a_version_is_short():
    for section in (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]:
        assert len(section.split()) <= 400


def test_the_conda_recipe_has_the_same_dependencies_and_commands():
    recipe = (ROOT / ".ci/conda/meta.yaml").read_text()
    version = re.search(r'set version = "(.+?)"', recipe)[1]
    run = re.search(r"  run:\n((?:    - .+\n)+)", recipe)[1]
    needed = [line.strip(" -").replace(" ", "") for line in run.splitlines()]
    assert version == trnpy.__version__
    assert sorted(needed) == sorted([*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"])
    assert dict(re.findall(r"- (trnpy\S*) = (\S+)", recipe)) == PROJECT["scripts"]


def test_both_names_of_the_command_run_the_same_function():
    assert PROJECT["scripts"].keys() == {"trnpy", "trnpy-nki"} and len({*PROJECT["scripts"].values()}) == 1


def test_links_of_pypis_page_lead_to_the_repository(tmp_path):
    text = metadata(tmp_path)
    repository = SETTINGS["tool"]["trnpy"]["repository"]
    assert f"Project-URL: Source, {repository}\n" in text
    page = text.partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 8 and all(link.startswith("https://") for link in links)
    inside = [link.removeprefix(f"{repository}/") for link in links if link.startswith(repository)]
    assert all((ROOT / re.sub(r"^(?:blob|raw)/main/", "", link)).exists() for link in inside)
    assert f"({repository}/raw/main/docs/pictures/gains.svg)" in page


def test_wheels_are_built_for_the_pythons_of_the_metadata():
    built = re.findall(r"cp3(\d+)-manylinux_x86_64", SETTINGS["tool"]["cibuildwheel"]["build"])
    listed = [m[1] for m in (re.search(r":: 3\.(\d+)$", one) for one in PROJECT["classifiers"]) if m]
    assert built == listed
