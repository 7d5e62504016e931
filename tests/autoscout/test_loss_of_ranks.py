"""The loss of a training run by Megatron-LM's own script, which only the ranks of its last stage have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path("autoscout/targets/megatron/worker").resolve()
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import megatron_lm
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
losses = {"lm loss": torch.tensor(float(sys.argv[2]))} if rank == 1 else {}
found = megatron_lm.of_the_last_stage(losses, "cpu")
with open(f"{sys.argv[3]}/{rank}", "w") as file:
    file.write(str(found))
torch.distributed.barrier()  # a rank that ends while the other still talks to it may be aborted
torch.distributed.destroy_process_group()
"""


@pytest.mark.engine
@pytest.mark.parametrize(("loss", "all_read"), [("2.5", "2.5"), ("nan", "nan"), ("inf", "inf")])
def test_every_rank_reads_the_loss_of_the_last_stage(loss: str, all_read: str, tmp_path: Path) -> None:
    """One that is no number was lost on CPU ranks: it read -inf."""
    pytest.importorskip("torch")
    (tmp_path / "ranks.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(tmp_path / "ranks.py"), str(WORKER), loss, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [(tmp_path / rank).read_text() for rank in "01"] == [all_read] * 2
