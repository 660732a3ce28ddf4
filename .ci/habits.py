"""Count habits of prose that readers stumble over, per 1,000 words of README, docs, ARCHITECTURE and CONTRIBUTING.

python .ci/habits.py [--before COMMIT] [--list HABIT ...]

Code is left out. ``--list`` prints each place; with ``--before`` the counts of a commit are printed beside today's.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
PAGES = re.compile(r"(README|ARCHITECTURE|CONTRIBUTING)\.md|docs/(?!generated|_build|changelog).*\.md")
CODE = re.compile(r"^```.*?^```|^~~~.*?^~~~|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|\$\$.*?\$\$|\$[^$\n]+\$", re.M | re.S)
DURATION = (
    r"(?:\d[\d.,]*(?: to \d[\d.,]*| and \d[\d.,]*| or \d[\d.,]*)? ?(?:[num]s|[nµ]s|s|h)\b|\b(?:times?|long|longer"
    r"|seconds?|minutes?|hours?|days?|microseconds?|milliseconds?|weeks?|least time|turns?)\b)"
)
HABITS = {
    "a": ("opens with Of, By, From or Without",
          r"(?:^|[.:!?|] +|^[-*\d.]+ +)(?:Of|By|From|Without) (?!now\b|here\b)\w+"),
    "b": ("noun clause with what", r"\b[Ww]hat\b(?!-if)(?![^.!?|]*\?)"),
    "f": ("where", r"\b[Ww]here\b(?![^.!?|]*\?)"),
    "g": ("takes, except time", rf"\b[Tt](?:ake|akes|aken|aking|ook)\b(?!(?:(?!\. )[^;|]){{0,70}}?{DURATION})"),
    "h": ("programs that say, ask, know, notice, look",
          r"\b(?:[Ss]ay|[Ss]ays|[Ss]aid|[Aa]sk|[Aa]sks|[Aa]sked|[Kk]now|[Kk]nows|[Kk]new|[Nn]otices?|[Nn]oticed|[Ll]ooks?|[Ll]ooked)\b"),
}  # fmt: skip


def prose(text: str) -> str:
    """``text`` with code, comments and targets of links blanked, and lines of a paragraph joined."""
    blank = CODE.sub(lambda found: "\n" if found[0].startswith("```") else "]" if found[0][0] == "]" else "x", text)
    return re.sub(r"(?<=[^\n|]) *\n(?=[^\n|#*\-\d:<]) *", " ", blank)


def pages(commit: str | None) -> dict[str, str]:
    """The prose of each page, by path: of a commit, or of the files here."""
    if commit is None:
        found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        texts = {str(path.relative_to(ROOT)): path.read_text() for path in found}
    else:
        names = git("ls-tree", "-r", "--name-only", commit).split()
        texts = {name: git("show", f"{commit}:{name}") for name in names if PAGES.fullmatch(name)}
    return {name: prose(text) for name, text in sorted(texts.items()) if PAGES.fullmatch(name)}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def rates(texts: dict[str, str]) -> tuple[int, dict[str, int]]:
    """Words, and the number of places of each habit."""
    words = sum(len(re.findall(r"[A-Za-z]{2,}", text)) for text in texts.values())
    return words, {key: sum(len(re.findall(p, t, re.M)) for t in texts.values()) for key, (_, p) in HABITS.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="print the counts of this commit, too")
    parser.add_argument("--list", nargs="*", default=[], choices=HABITS, help="print each place of these habits")
    options = parser.parse_args()
    now = pages(None)
    for name, text in now.items():
        for key in options.list:
            for found in re.finditer(HABITS[key][1], text, re.M):
                around = text[max(found.start() - 90, 0) : found.end() + 70].replace("\n", " / ")
                print(f"{name} {key}: {around}")
    words, counts = rates(now)
    earlier = rates(pages(options.before)) if options.before else None
    print(f"{'per 1,000 words':44s}{'before' if earlier else '':>10s}{'now':>10s}{'ratio' if earlier else '':>10s}")
    for key, (label, _) in HABITS.items():
        here = 1000 * counts[key] / words
        line = f"{key}  {label:41s}"
        if earlier:
            there = 1000 * earlier[1][key] / earlier[0]
            line += f"{there:10.2f}{here:10.2f}{here / there if there else 0:10.2f}"
        else:
            line += f"{'':10s}{here:10.2f}"
        print(f"{line}  ({counts[key]} places)")
    print(f"words{'':39s}{earlier[0] if earlier else '':>10}{words:>10}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
