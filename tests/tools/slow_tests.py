"""Selects the tests that `make test` leaves to `make test-all`: slow ones that cover no additional lines of kb/ and
autoscout/. Prints tests/left_out.txt, from the coverage and times recorded by tests/tools/mutants.py: slow tests are
kept in the order of additional lines per second, until none adds `--least` lines. Redundant tests of engines, which run
in other processes without coverage, are added manually."""

import argparse
from collections import defaultdict

from mutants import watched

_SLOW_S = 1.5  # wall seconds under coverage; faster tests are never left out
_SCREENS = "tests/tui/"  # tests without recorded coverage
_ALWAYS = {  # the most important tests, kept even if other tests cover their lines
    "test_api_page.py::test_the_code_of_the_page_runs",
    "test_conformance.py::test_finds_the_optimum_of_a_small_table",
    "test_lake.py::test_two_knowledge_bases_merge_through_a_folder",
    "test_launches.py::test_every_knob_reaches_the_launch",
    "test_session.py::test_a_session_ends_on_a_confirmed_winner",
    "test_session.py::test_a_torn_last_line_is_cut_off_and_the_session_goes_on",
    "test_session.py::test_the_same_seed_and_measurements_write_the_same_decisions",
    "test_space.py::test_samples_and_the_expert_default_are_valid_by_every_rule",
    "test_store.py::test_a_killed_writer_loses_nothing_that_it_acknowledged",
    "test_trial.py::test_equals_are_called_faster_in_at_most_five_of_a_hundred",
}


def chosen(lines: dict[str, set[tuple[str, int]]], took: dict[str, float], least: int) -> list[str]:
    """The redundant slow tests: each adds fewer than `least` lines to the kept ones."""
    slow = {test for test in lines if took[test] >= _SLOW_S and test.rpartition("/")[2] not in _ALWAYS}
    kept = set[tuple[str, int]]().union(*(lines[test] for test in lines if test not in slow))
    while slow:
        best = max(slow, key=lambda test: (len(lines[test] - kept) / took[test], test))
        if len(lines[best] - kept) < least:
            break
        kept |= lines[best]
        slow.remove(best)
    return sorted(slow, key=lambda test: -took[test])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least", type=int, default=3, help="a test that adds as many lines is kept")
    least = parser.parse_args().least
    seen = watched(at_once=2)
    lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for line, tests in seen.runs.items():
        for test in tests:
            if not test.startswith(_SCREENS):
                lines[test].add(line)
    print("\n".join(chosen(lines, seen.took, least)))


if __name__ == "__main__":
    main()
