"""Texts of real failures, collected before anything was written to classify them, and what each should be.

TABLE: what was wrong on 2026-11-22. FURTHER: collected afterwards from issue trackers and manuals, for a classifier
that had not seen them. `kind` and `phase` are those of a rank's exception; without a kind it is a line of the log of a
rank that died of `signal`.
"""

from typing import NamedTuple


class Text(NamedTuple):
    should_be: str
    text: str
    kind: str = ""
    phase: str = "train"
    signal: int = 6
    names: str = ""  # what the evidence has to name
    source: str = ""


TABLE = [
    Text("oom", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "RuntimeError"),
    Text("oom", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "RuntimeError"),
    Text(
        "oom",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nFailed to CUDA calloc async 608 bytes",
        "DistBackendError",
    ),
    Text(
        "oom",
        "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error, NCCL version "
        "2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        "DistBackendError",
        "groups",
    ),
    Text("oom", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "RuntimeError"),
    Text(
        "oom",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\n"
        "CUDA kernel errors might be asynchronously reported at some other API call\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)\n"
        "frame #6: clone + 0x44 (0x7fbe1f8c4a04 in /lib/x86_64-linux-gnu/libc.so.6)",
    ),
    Text("infrastructure", "No CUDA GPUs are available", "RuntimeError", "groups"),
    Text(
        "infrastructure",
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 802: system not yet initialized",
        "RuntimeError",
        "groups",
        names="fabric manager",
    ),
    Text(
        "infrastructure",
        "CUDA driver initialization failed, you might not have a CUDA gpu.",
        "RuntimeError",
        "groups",
        names="driver",
    ),
    Text(
        "infrastructure",
        "The server socket has failed to listen on any local network address. The server socket has failed to bind to "
        "[::]:29500 (errno: 98 - Address already in use).",
        "DistNetworkError",
        "groups",
        names="29500",
    ),
    Text(
        "infrastructure",
        "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "ValueError",
        "groups",
    ),
    Text("infrastructure", "name 'TENorm' is not defined", "NameError", "build", names="Transformer Engine"),
    Text(
        "infrastructure",
        "/usr/local/lib/python3.10/dist-packages/transformer_engine_torch.cpython-310-x86_64-linux-gnu.so: undefined "
        "symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        "ImportError",
        "import",
        names="Transformer Engine",
    ),
    Text("infrastructure", "Ninja is required to load C++ extensions", "RuntimeError", "build", names="ninja"),
    Text("infrastructure", "Triton Error [CUDA]: device kernel image is invalid", "RuntimeError"),
    Text(
        "infrastructure",
        "unable to write to file </torch_2311_1938174293_0>: No space left on device (28)",
        "RuntimeError",
    ),
    Text(
        "timeout",
        "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=199, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, "
        "Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)\n"
        "frame #6: clone + 0x44 (0x7fbe1f8c4a04 in /lib/x86_64-linux-gnu/libc.so.6)",
        names="_REDUCE_SCATTER_BASE",
    ),
    Text("infrastructure", "CUDA error: uncorrectable ECC error encountered", "RuntimeError", names="ECC"),
    Text(
        "infrastructure",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\nterminate called without an active "
        "exception",
        names="Xid",
    ),
    Text("error", "CUDA error: an illegal memory access was encountered", "RuntimeError"),
    Text("error", "CUDA error: an illegal memory access was encountered", "AcceleratorError", "build"),
    Text(
        "infrastructure",
        "CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError",
        "groups",
        names="busy",
    ),
]

FURTHER = [
    Text(
        "infrastructure",
        "CUDA error: uncorrectable ECC error encountered Search for `cudaErrorECCUncorrectable' in "
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.",
        "AcceleratorError",
        source="ostris/ai-toolkit#470",
    ),
    Text(
        "infrastructure",
        "GPU 00000000:04:00.0: Detected Critical Xid Error\nRuntimeError: CUDA error: an illegal memory access was "
        "encountered",
        source="GoogleCloudPlatform/ai-infra-cluster-provisioning#383",
    ),
    Text("error", "CUDA error: unspecified launch failure", "RuntimeError", source="pytorch/pytorch#74235, MinerU#426"),
    Text(
        "infrastructure",
        ":4654:5666 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.3.0.61<39430> with "
        "error 12, opcode 129, len 0, vendor err 129 (Recv) localGid ::ffff:10.3.16.3 remoteGid ::ffff:10.3.16.61",
        source="NVIDIA/nccl#1434",
    ),
    Text(
        "infrastructure",
        "aigc-maas-instance-leader-0:1639:1915 [0] misc/ibvwrap.cc:206 NCCL WARN Call to ibv_modify_qp failed with "
        "error No such device errno 19",
        source="NVIDIA/nccl#1657",
    ),
    Text(
        "infrastructure",
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
        "name: EADDRINUSE, message: address already in use",
        "DistNetworkError",
        "groups",
        source="vllm-project/vllm#39015",
    ),
    Text(
        "infrastructure",
        "/home/.local/lib/python3.9/site-packages/libtransformer_engine.so: undefined symbol: "
        "_ZNKSt10filesystem4path12has_filenameEv",
        "OSError",
        "import",
        source="NVIDIA/TransformerEngine#611",
    ),
    Text(
        "infrastructure",
        '  File "/env/lib/python3.10/site-packages/transformer_engine/pytorch/__init__.py", line 52, in '
        "_load_library\n    so_path = next(so_dir.glob(f'{module_name}.*.{extension}'))\nStopIteration",
        source="NVIDIA/TransformerEngine#1541",
        signal=0,
    ),
    Text(
        "oom",
        "ng30903:3063025:3066048 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer "
        "ng30903-ib.narval.calcul.quebec<51159>\n"
        "ng30903:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
        "ng30903:3063028:3066152 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
        source="NVIDIA/nccl#1235",
    ),
    Text(
        "infrastructure",
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 804: forward compatibility was attempted on non supported HW",
        "RuntimeError",
        "groups",
        source="gpustack/gpustack#1254",
    ),
    Text(
        "infrastructure",
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError",
        "groups",
        source="nagadomi/nunif#702",
    ),
    Text(
        "timeout",
        "[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600067 milliseconds before timing out.\n"
        "[rank0]:[E321 02:07:08.465224069 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or "
        "timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.",
        names="ALLREDUCE",
        source="hiyouga/LlamaFactory#7396",
    ),
    Text(
        "timeout",
        "[rank1]:[E1016 03:31:38.928019586 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9141, OpType=_ALLGATHER_BASE, NumelIn=19008, NumelOut=152064, Timeout(ms)=600000) "
        "ran for 600071 milliseconds before timing out.\n[rank4]: To avoid data inconsistency, we are taking the "
        "entire process down.",
        names="_ALLGATHER_BASE",
        source="sgl-project/sglang#1693",
    ),
    Text(
        "infrastructure",
        "Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 "
        "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "ValueError",
        "build",
        source="vllm-project/vllm#20305",
    ),
    Text(
        "infrastructure",
        "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be "
        "asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
        "RuntimeError",
        "build",
        source="hustvl/Vim#42",
    ),
    Text(
        "infrastructure",
        "include/shm.h:28 NCCL WARN Call to posix_fallocate failed: No space left on device\n"
        "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-250a7cc850ba9298-0-1-3 "
        "(size 9637888)",
        source="NVIDIA/nccl#342",
    ),
    Text(
        "infrastructure",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage (run with NCCL_DEBUG=WARN for "
        "details), NCCL version 2.20.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        "DistBackendError",
        "groups",
        source="verl-project/verl#161",
    ),
    Text(
        "infrastructure",
        " 2 0x00000000000742f0 ncclGroupEnd()  ???:0\n 3 0x0000000000008609 start_thread()  ???:0",
        signal=7,
        source="NVIDIA/Megatron-LM#516",
    ),
    Text(
        "oom",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasLtMatmulAlgoGetHeuristic",
        "RuntimeError",
        source="errorcanon.top, cublas-alloc-failed-cublaslt",
    ),
    Text(
        "infrastructure",
        "NVRM: Xid (PCI:0000:01:00): 109, pid=4124, name=python, Ch 00000028, errorString CTX SWITCH TIMEOUT, Info "
        "0x2c014",
        source="pytorch/pytorch#74235",
    ),
    Text(
        "infrastructure",
        "NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:839, unhandled system error, NCCL version 2.8.3\n"
        "ncclSystemError: System call (socket, malloc, munmap, etc) failed.",
        "RuntimeError",
        "groups",
        source="NVIDIA/Megatron-LM#71",
    ),
    Text(
        "infrastructure",
        "/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status",
        signal=0,
        source="vllm-project/vllm#18730",
    ),
    Text(
        "infrastructure",
        "NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such "
        "file or directory (2)",
        source="vllm-project/vllm#18831",
    ),
    Text(
        "infrastructure",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable\n  current device: 0, in function "
        "ggml_cuda_set_device",
        source="ggml-org/llama.cpp#11841",
    ),
    Text(
        "oom",
        "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 79.15 GiB total capacity; 76.42 GiB already "
        "allocated; 128.50 MiB free; 77.20 GiB reserved in total by PyTorch)",
        "OutOfMemoryError",
        source="the wording of PyTorch 1.13 to 2.0",
    ),
    Text(
        "invalid",
        "Context parallelism is only supported by TEDotProductAttention!",
        "AssertionError",
        "build",
        source="Megatron-core 0.16.1 without Transformer Engine",
    ),
    # From here on: found when the classifier was done, which got the first two wrong at first.
    Text(
        "infrastructure",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'",
        "DistBackendError",
        "groups",
        source="hubbid.com, fixing-cuda-failure-999-unknown",
    ),
    Text(
        "infrastructure",
        "[Mon Feb 2 22:52:45 2026] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 12028, Data {0x000001c0, 0x000e265f}",
        source="sulao.cn/post/1165",
    ),
    Text(
        "infrastructure",
        "[Mon Feb 2 22:52:45 2026] NVRM: Xid (PCI:0000:4c:00): 94, pid=538574, name=python, channel 0x0000000a",
        source="sulao.cn/post/1165",
    ),
    Text(
        "error",
        "NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, internal error, NCCL version 2.7.8 "
        "ncclInternalError: Internal check failed. Last error: cudaErrorAssert: device-side assert triggered",
        "RuntimeError",
        source="duoke360.com/post/34406",
    ),
]
