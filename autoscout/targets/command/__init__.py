"""A command of the person's own: its knobs are declared in files that the job names."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoscout.targets.target import Target
from kb.records import Job

if TYPE_CHECKING:
    from autoscout.space.knob import Catalog


class Command(Target):
    name = "command"
    about = "any command, with knobs of your own"

    def problems(self, job: Job) -> Iterator[str]:
        if not job.space.catalog:
            yield "target = 'command' has no knobs of its own; name a catalog that declares them in space.catalog"

    def catalog(self, job: Job) -> "Catalog":
        from autoscout.space.knob import Catalog

        return Catalog(target="command")
