"""Counts the words of each page for users, and how often the code contains told, said or beside.

PYTHONPATH=. python tests/tools/words_counted.py
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Not counted: generated pages, pages for developers against our API, and the page for users of fleets.
OF_OTHERS = {"api", "architecture", "imports", "engines-and-releases", "fleet"}
_OURS = re.compile(r"\b(?:told|said|beside)\b")


def pages() -> dict[str, int]:
    """Page → number of words, for README and each page for users."""
    found = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.stem not in OF_OTHERS)]
    return {page.stem: len(page.read_text().split()) for page in found}


def ours_per_1000() -> tuple[int, int]:
    """(occurrences of the three words in the code, its lines)."""
    texts = [path.read_text() for room in ("kb", "autoscout", "tui") for path in (ROOT / room).rglob("*.py")]
    return sum(len(_OURS.findall(text)) for text in texts), sum(text.count("\n") for text in texts)


def main() -> None:
    for page, words in pages().items():
        print(f"{words:7,}  {page}")
    print(f"{sum(pages().values()):7,}  in all (README at most 1,200, all at most 24,000)")
    count, lines = ours_per_1000()
    print(f"told, said, beside: {count} in {lines:,} lines of code, {1000 * count / lines:.1f} in 1,000 (at most 6)")


if __name__ == "__main__":
    main()
