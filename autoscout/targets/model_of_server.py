"""The model of a serving job, apart from the engine, to ask the same question of several engines."""

import msgspec

from kb.records import Job, LaunchSettings, SpaceLimits

FORMATS = ("quantization", "kv_cache_dtype")  # settings that also hold for other engines


class ServedModel(msgspec.Struct, frozen=True):
    """`name`: the model's name or folder in the launch line; `engine`: the engine of the job; `formats`: number formats
    that the line sets (FORMATS) → value."""

    name: str
    engine: str
    formats: dict[str, str] = {}


def with_engine(job: Job, target: str, line: str, script: str = "") -> Job:
    """Returns the job with another engine's launch line and that engine's whole space."""
    launch = LaunchSettings(script=script, current=line, path=job.launch.path)
    return msgspec.structs.replace(job, target=target, launch=launch, space=SpaceLimits())
