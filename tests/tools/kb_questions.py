"""Runs the commands of docs/knowledge-base.md and writes their output into the page.

python tests/tools/kb_questions.py
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kb import query
from kb.query_formats import render

DOCS = Path(__file__).parents[2] / "docs" / "knowledge-base.md"
_QUESTION = re.compile(r"### (?P<title>[^\n]+)\n\n```sql\n(?P<sql>.+?)```\n(?:\n```\n.+?```\n)?", re.DOTALL)


def commands(kb: Path) -> None:
    """Runs the commands of the page."""
    page = DOCS.read_text().split("## Ten questions")[1].split("```")[1]
    for line in page.strip().splitlines()[1:]:
        command = line.replace("/tmp/demo", str(kb.parent)).replace("autoscout", f"{sys.executable} -m tui.cli", 1)
        environment = {**os.environ, "AUTOSCOUT_KB": str(kb), "PYTHONPATH": "."}
        subprocess.run(["bash", "-c", command], check=True, capture_output=True, env=environment)


def questions() -> dict[str, str]:
    return {found["title"]: found["sql"] for found in _QUESTION.finditer(DOCS.read_text())}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        kb = Path(folder) / "kb.duckdb"
        commands(kb)

        def answered(found: re.Match[str]) -> str:
            answer = render(query.run(kb, found["sql"]), "table")
            return f"### {found['title']}\n\n```sql\n{found['sql']}```\n\n```\n{answer}```\n"

        DOCS.write_text(_QUESTION.sub(answered, DOCS.read_text()))


if __name__ == "__main__":
    main()
