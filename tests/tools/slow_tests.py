"""Which tests `make test` leaves to `make test-all`: the slow ones whose every line of kb/ and autoscout/ a quicker
test runs too. Prints tests/left_out.txt, from the coverage and the times that tests/tools/mutants.py keeps: of the
slow tests those are kept that gain most lines per second, until none gains `--least`. Tests of engines, whose lines run
elsewhere, are added by hand: what a neighbour finds too.
"""

import argparse

from mutants import ROOT, watched

_SLOW_S = 1.5  # by the clock, beside coverage; a quicker test is never left out
_SCREENS = "tests/tui/"  # their lines are not watched
_ALWAYS = {  # what a person loses most by, whoever runs its lines
    "test_api_page.test_the_code_of_the_page_runs",
    "test_conformance.test_finds_the_optimum_of_a_small_table",
    "test_lake.test_two_knowledge_bases_merge_through_a_folder",
    "test_launches.test_every_knob_reaches_the_launch",
    "test_session.test_a_session_ends_on_a_confirmed_winner",
    "test_session.test_a_torn_last_line_is_cut_off_and_the_session_goes_on",
    "test_session.test_the_same_seed_and_measurements_write_the_same_decisions",
    "test_space.test_samples_and_the_expert_default_are_valid_by_every_rule",
    "test_store.test_a_killed_writer_loses_nothing_that_it_acknowledged",
    "test_trial.test_equals_are_called_faster_in_at_most_five_of_a_hundred",
}


def chosen(lines: dict[str, set[tuple[str, int]]], took: dict[str, float], least: int) -> list[str]:
    """The slow tests that nothing is lost without: each adds fewer than `least` lines to what is kept."""
    slow = {test for test in lines if took[test] >= _SLOW_S} - _ALWAYS
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
    data, took = watched()
    where = {path.stem: str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    lines: dict[str, set[tuple[str, int]]] = {}
    for file in data.measured_files():
        for line, tests in data.contexts_by_lineno(file).items():
            for test in tests:
                module = test.split(".")[0]
                if module in where and not where[module].startswith(_SCREENS):
                    lines.setdefault(test, set()).add((file, line))
    for test in chosen(lines, took, least):
        module, _, name = test.partition(".")
        print(f"{where[module]}::{name}")


if __name__ == "__main__":
    main()
