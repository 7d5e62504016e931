"""The one error that a user sees. In its own file, so that a command line that only refuses loads nothing else."""


class AutoscoutError(Exception):
    """Something that the user can act on: one sentence that says what, where and what to do.

    `exit_code` is the command line's: 1 it ran and failed, 2 bad input, 3 nothing feasible.
    """

    def __init__(self, sentence: str, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
