"""The code of docs/api.md runs, in the order of the page."""

import re
import shutil
from pathlib import Path

PAGE = Path("docs/api.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    text = PAGE.read_text()
    shutil.copy("fixtures/jobs/tiny-gpt-cpu.toml", tmp_path / "job.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOSCOUT_KB", str(tmp_path / "kb.duckdb"))
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    names: dict[str, object] = {}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)
