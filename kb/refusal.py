"""The exception whose message is shown to users. It has its own file, so that code that raises it needs no other
imports."""


class AutoscoutError(Exception):
    """An error that the user can act on. Its message is one sentence with what went wrong, where, and what to do.

    `exit_code`, of the command line: 1 the command failed, 2 its input is invalid, 3 nothing is feasible.
    """

    def __init__(self, sentence: str, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
