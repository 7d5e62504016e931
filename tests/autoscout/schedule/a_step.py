"""A person's own command for tests: meets the others, says times of steps, and does what the file of its host says."""

import os
import platform
import signal
import sys
import time
from pathlib import Path

from a_rank import meet

node, head, port, ranks, nodes, folder = sys.argv[1:7]
told = Path(folder) / f"tell-{node}"
if told.is_file():
    raise ValueError(told.read_text())
if (Path(folder) / f"kill-{node}").exists():
    os.kill(os.getpid(), signal.SIGKILL)
print(f"node {node} of {nodes} on {platform.node()} has {ranks} ranks", flush=True)
meet(int(node), int(nodes), head, int(port))
for i in range(30):
    print(f"step {i} took {10 + i % 2} ms", flush=True)
    time.sleep(0.01)
