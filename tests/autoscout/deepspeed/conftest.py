import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from ds_configs import CONFIG

from autoscout.job.toml_text import toml
from autoscout.targets.jobs import load_job

HERE = Path(__file__).parent


class Place:
    """A folder with a script, a ds_config and a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(HERE / "pretends.py", folder / "train.py")

    def config(self, config: dict[str, Any] | str, name: str = "ds_config.json") -> Path:
        path = self.folder / name
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    def job_file(
        self, config: dict[str, Any] | str = CONFIG, more: str = "", flags: str = "", batch: int = 16, goal: str = ""
    ) -> Path:
        self.config(config)
        path = self.folder / "job.toml"
        path.write_text(f"""
name = "ds"
target = "deepspeed"
{f"[traffic]{chr(10)}global_batch = {batch}" if batch else ""}
[cluster]
nodes = [{{ device = "cpu", count = 2 }}]
[objective]
{goal or 'maximize = "samples_per_s"'}
[launch]
command = "{sys.executable} train.py {flags} --deepspeed_config ds_config.json"
render = [{{ from = "ds_config.json", to = "{{folder}}/ds_config.json" }}]
iterations = 5
{more}
""")
        return path

    def toml(self, made: dict[str, Any]) -> Path:
        path = self.folder / "made.toml"
        path.write_text(toml(made, []))
        return path

    def job(self, *args: Any, **kwargs: Any):
        return load_job(self.job_file(*args, **kwargs))


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)
