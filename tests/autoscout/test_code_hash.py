"""Measurements stay comparable when only the words about the code that measures change."""

from pathlib import Path

from autoscout.running import interpreter
from autoscout.running.interpreter import hash_of

CODE = '''"""Words."""
import os


def wait(seconds: float) -> str:
    """Words."""
    text = "# no comment"  # words
    return text * int(seconds)
'''


def hash_with(folder: Path, old: str, new: str) -> str:
    path = folder / "code.py"
    assert old in CODE
    path.write_text(CODE.replace(old, new))
    return hash_of([path])


def test_words_do_not_count_and_code_does(tmp_path):
    known = hash_with(tmp_path, "", "")
    assert hash_with(tmp_path, "Words.", "Other words,\n\nin two paragraphs.") == known
    assert hash_with(tmp_path, "  # words", "") == known
    assert hash_with(tmp_path, "import os\n", "import os\n# Words.\n\n") == known
    assert hash_with(tmp_path, "# no comment", "# another") != known
    assert hash_with(tmp_path, "import os", "import re") != known
    assert hash_with(tmp_path, 'text = "', 'texts = "') != known


def test_code_on_the_line_of_a_docstring_counts(tmp_path):
    known = hash_with(tmp_path, "import os", 'class A: """Words."""')
    assert hash_with(tmp_path, "import os", 'class A: """Other."""  # words') == known
    assert hash_with(tmp_path, "import os", 'class B: """Words."""') != known


def test_what_is_no_python_of_this_version_counts_whole(tmp_path):
    assert hash_with(tmp_path, "import os", "print 'a'  # words") != hash_with(tmp_path, "import os", "print 'a'")


def test_the_code_that_ships_is_read(tmp_path):
    shipped = [*(Path(interpreter.__file__).parent / "worker").glob("*.py")]
    assert shipped
    for path in shipped:
        (tmp_path / path.name).write_bytes(path.read_bytes() + b"# words\n")
        assert hash_of([tmp_path / path.name]) == hash_of([path])
