"""What is written for a person in TOML is read back as it was."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from autoscout.job.toml_text import toml

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=8)
PLAIN = st.one_of(st.booleans(), st.integers(-9, 9), FINITE, NAMES)


@given(st.dictionaries(NAMES, st.one_of(PLAIN, st.lists(PLAIN), st.dictionaries(NAMES, PLAIN))))
def test_what_is_written_is_read_back(content):
    assert tomllib.loads(toml({**content, "table": content}, ["a note", "of\ntwo lines"])) == {
        **content,
        "table": content,
    }
