"""Micro-benchmarks of this machine. The target's interpreter runs this file, so it imports nothing of AutoScout.

    python microbench.py KIND QUICK LEASH      KIND: auto | cpu | cuda; QUICK: 0 | 1; LEASH: path of leash.py

Prints a line of JSON for every finished group: {"group": …, "rows": […]}. Times are medians of repeats, in
microseconds. A CPU "device" is one thread, as for a CPU rank of a job."""

import sys

sys.path.pop(0)  # this script's folder, whose modules would shadow some of the standard library's

import json
import os
import platform
import resource
import statistics
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

KIND = sys.argv[1]
if KIND == "auto":
    KIND = "cuda" if torch.cuda.is_available() else "cpu"
QUICK = sys.argv[2] == "1"
LEAST_S = 0.02 if QUICK else 0.1  # minimum seconds of a measurement
REPEATS = 5 if QUICK else 9  # odd, so that the median is a measurement
CUDA = KIND == "cuda"
# A CPU rank is one thread, so CPU time measures it without the influence of other processes.
clock = time.perf_counter if CUDA else time.process_time
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def say(group, rows):
    print(json.dumps({"group": group, "rows": rows}), flush=True)


def wait():
    if CUDA:
        torch.cuda.synchronize()


def micros(work):
    """Median microseconds of one call. Several calls are timed together to reduce the clock's overhead."""
    work()
    wait()
    calls = 1
    while True:
        start = clock()
        for _ in range(calls):
            work()
        wait()
        took = clock() - start
        if took >= LEAST_S / REPEATS or calls >= 4096:
            break
        calls *= 2
    times = [took / calls]
    for _ in range(REPEATS - 1):
        start = clock()
        for _ in range(calls):
            work()
        wait()
        times.append((clock() - start) / calls)
    return statistics.median(times) * 1e6


def device():
    if CUDA:
        p = torch.cuda.get_device_properties(0)
        name, sms, gib, count = p.name, p.multi_processor_count, p.total_memory / 2**30, torch.cuda.device_count()
        vendor, capability = ("amd", 0.0) if torch.version.hip else ("nvidia", float(f"{p.major}.{p.minor}"))
    else:
        name, sms, count, vendor, capability = processor(), 1, len(os.sched_getaffinity(0)), "", 0.0
        gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if CUDA:
        torch.zeros(1, device=KIND)
        free, total = torch.cuda.mem_get_info()
        context = (total - free) / 2**30
    else:
        context = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    facts = {"name": name, "multiprocessors": sms, "memory_gib": gib, "count": count, "context_gib": context}
    facts |= {"vendor": vendor, "capability": capability}
    say("device", [{**facts, "kind": KIND, "torch": torch.__version__}])


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def products():
    rows = []
    counts = [1, 16, 128, 1024] + ([4096] if CUDA else [])
    shapes = [(1024, 1024), (3072, 1024), (1024, 3072)] + ([] if QUICK else [(512, 512), (2048, 2048)])
    if CUDA:
        shapes = [(4 * n, 4 * k) for n, k in shapes]
    for dtype, kind in DTYPES.items():
        for n, k in shapes:
            weight = torch.randn(n, k, device=KIND, dtype=kind)
            for m in counts[::2] if QUICK else counts:
                x = torch.randn(m, k, device=KIND, dtype=kind)
                rows.append([dtype, m, n, k, micros(lambda x=x, w=weight: F.linear(x, w))])
    say("gemm", rows)


def attention():
    """Groups "prefill" (causal attention, forward and backward) and "decode" (one token after a context)."""
    dtype = torch.bfloat16
    heads, dim = (32, 128) if CUDA else (4, 64)
    lengths = [256, 1024, 4096] if CUDA else [128, 512] if QUICK else [128, 512, 1024]
    rows = []
    for batch in (1, 4):
        for length in lengths:
            q, k, v = (torch.randn(batch, heads, length, dim, device=KIND, dtype=dtype) for _ in range(3))
            forward = micros(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            both = 0.0
            if batch == 1:
                for t in (q, k, v):
                    t.requires_grad_(True)
                both = micros(
                    lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
                )
            rows.append([batch, heads, length, dim, forward, both])
    say("prefill", rows)
    rows = []
    for batch in (1, 8, 32) if CUDA else (1, 8):
        for context in (512, 2048, 8192) if CUDA else (128, 512, 2048):
            q = torch.randn(batch, heads, 1, dim, device=KIND, dtype=dtype)
            k, v = (torch.randn(batch, heads, context, dim, device=KIND, dtype=dtype) for _ in range(2))
            took = micros(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v))
            rows.append([batch, heads, context, dim, took])
    say("decode", rows)


def memory():
    """Group "memory": copies and norms (with the bytes read and written), and the launch of the smallest kernel."""
    rows = []
    for mib in (1, 16, 128) if CUDA else (1, 8, 64):
        a = torch.randn(mib * 2**18, device=KIND)
        b = torch.empty_like(a)
        rows.append(["copy", 2 * a.nbytes, micros(lambda a=a, b=b: b.copy_(a))])
        x = a.view(-1, 1024)
        rows.append(["norm", 2 * a.nbytes, micros(lambda x=x: F.layer_norm(x, (1024,)))])
    one = torch.zeros(1, device=KIND)
    rows.append(["launch", 0, micros(lambda: one.add_(1))])
    say("memory", rows)


def host():
    """Group "host": the CPU time of Python and torch for a small operator."""
    layer = torch.nn.Linear(8, 8, device=KIND)
    x = torch.zeros(1, 8, device=KIND)
    say("host", [["forward", micros(lambda: layer(x))]])


def collectives(leash):
    """Group "collectives": times of collectives over 2, 4 and 8 local ranks, up to the number of devices."""
    count = torch.cuda.device_count() if CUDA else len(os.sched_getaffinity(0))
    rows = []
    for world in (2, 4, 8):
        if world > count or (QUICK and world > 2):
            break
        with tempfile.TemporaryDirectory() as folder:
            me = [sys.executable, leash, str(os.getpid()), sys.executable, os.path.abspath(__file__), KIND, sys.argv[2]]
            with open(os.path.join(folder, "output"), "w+b") as output:  # a file: NCCL's messages could fill a pipe
                ranks = [
                    subprocess.Popen(
                        [*me, leash, str(rank), str(world), folder], stdout=output if rank == 0 else sys.stderr
                    )
                    for rank in range(world)
                ]
                while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
                    time.sleep(0.02)
                for rank in ranks:  # after one rank fails, the remaining ranks would wait forever
                    rank.kill()
                    rank.wait()
                if any(rank.returncode for rank in ranks):
                    print(f"collectives of {world} ranks failed", file=sys.stderr)
                    break
                output.seek(0)
                rows += json.loads(output.read().splitlines()[-1])
    say("collectives", rows)


def one_rank(rank, world, folder):
    dist.init_process_group("nccl" if CUDA else "gloo", f"file://{folder}/store", rank=rank, world_size=world)
    if CUDA:
        torch.cuda.set_device(rank)
    where = f"cuda:{rank}" if CUDA else "cpu"
    rows = []
    for size in (2**12, 2**18, 2**24) if QUICK else (2**12, 2**16, 2**20, 2**24):
        whole = torch.ones(size // 4, device=where)
        part = torch.ones(size // 4 // world, device=where)
        pieces = list(whole.view(world, -1).unbind(0))
        works = {
            "all_reduce": lambda w=whole: dist.all_reduce(w),
            "all_gather": lambda p=part, g=pieces: dist.all_gather(g, p),
            "reduce_scatter": lambda p=part, g=pieces: dist.reduce_scatter(p, g),
            "all_to_all": lambda w=whole: dist.all_to_all_single(torch.empty_like(w), w),
            "send": lambda w=whole: dist.send(w, 1) if rank == 0 else dist.recv(w, 0) if rank == 1 else None,
        }
        for name, work in works.items():
            try:
                rows.append([name, world, size, timed_together(work)])
            except RuntimeError:  # the backend does not support this collective
                continue
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(rows))


def timed_together(work):
    """Median microseconds of a call in which all ranks take part."""
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(4):
            work()
        wait()
        times.append((time.perf_counter() - start) / 4)
    return statistics.median(times[1:]) * 1e6


def main():
    torch.manual_seed(0)
    if not CUDA:
        torch.set_num_threads(1)
    if len(sys.argv) > 4:
        return one_rank(int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    device()
    with torch.no_grad():
        products()
        memory()
    attention()
    host()
    return collectives(sys.argv[3])


if __name__ == "__main__":
    main()
