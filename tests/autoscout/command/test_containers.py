"""What a line's container sees of an experiment."""

import pytest

from autoscout.line.containers import mounted
from autoscout.line.launch_line import read


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("docker run --gpus all -v /a:/b image x", "docker run --volume=/e:/e --gpus all -v /a:/b image x"),
        ("sudo /usr/bin/podman run image x", "sudo /usr/bin/podman run --volume=/e:/e image x"),
        ("apptainer exec --nv image.sif x", "apptainer exec --bind=/e --nv image.sif x"),
        ("srun -N 2 singularity run i x", "srun -N 2 singularity run --bind=/e i x"),
        ("enroot start --rw image x", "enroot start --mount=/e:/e --rw image x"),
        ("srun --container-image=i x", "srun --container-mounts=/e:/e --container-image=i x"),
        (
            "srun --container-image i --container-mounts=/a:/b,/c x",
            "srun --container-image i --container-mounts=/a:/b,/c,/e:/e x",
        ),
        ("srun --container-mounts /a:/b x", "srun --container-mounts /a:/b,/e:/e x"),
        ("docker exec running x", "docker exec running x"),  # of a container that runs nothing can be mounted
        ("torchrun train.py run", "torchrun train.py run"),
    ],
)
def test_an_experiment_s_folder_is_mounted(line, expected):
    assert str(mounted(read(line, "launch.current"), "/e")) == expected
