"""The interpreter of a user's command, whose versions stand beside its measurements."""

import os

import msgspec
import pytest

from autoscout.line.launch_line import read
from autoscout.targets.command.arguments import Started
from autoscout.targets.command.surroundings import python_of


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A machine with the launchers of a system in one folder, a person's environment in another, first on the path."""
    for folder, names in {
        "system": ("srun", "mpirun", "numactl", "uv", "apptainer", "bash", "python"),
        "mine": ("python",),
    }.items():
        (tmp_path / folder).mkdir()
        for name in names:
            path = tmp_path / folder / name
            path.write_bytes(b"\x7fELF")
            path.chmod(0o755)
    (tmp_path / "mine/torchrun").write_text(f"#!{tmp_path}/mine/python\n")
    (tmp_path / "mine/torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / folder) for folder in ("mine", "system")))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("python train.py", "mine/python"),
        ("torchrun --nproc-per-node 2 train.py", "mine/python"),
        ("srun -N 2 --ntasks-per-node 8 python train.py", "mine/python"),
        ("srun --mpi pmix {here}/system/python train.py", "system/python"),
        ("srun -N 2 system/python train.py", "system/python"),
        ("mpirun -n 4 -x NCCL_DEBUG=INFO numactl --localalloc torchrun train.py", "mine/python"),
        ("bash run.sh", "mine/python"),
        ("srun --container-image=some/image:tag python train.py", ""),
        ("apptainer exec --nv some.sif python train.py", ""),
        ("uv run python train.py", ""),
        ("srun ./a.out", ""),
    ],
)
def test_the_interpreter_is_what_the_line_resolves_to(programs, job, words, found):
    """That beside srun was taken, /usr/bin/python: of another torch, or of none."""
    (programs / "run.sh").write_text("#!/bin/bash\nexport A=1\npython train.py\n")
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, path=str(programs)))
    started = Started(line=read(words.format(here=programs), "launch.command"), environment={}, files={})
    assert python_of(job, started) == (str(programs / found) if found else "")
