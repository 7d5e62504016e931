"""Texts of real failures, collected before anything was written to classify them, and what each should be.

TABLE: what was wrong on 2026-11-22. FURTHER: collected afterwards from issue trackers and manuals, for a classifier
that had not seen them. THIRD: for the second round, before its classifier was touched, which got 6 of the 22 right;
FOURTH: when it had learned those, 15 of 20. `kind` and `phase` are those of a rank's exception; without a kind it is a
line of the log of a rank that died of `signal`.
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

THIRD = [
    Text(
        "infrastructure",
        "slurmstepd: error: NVML: Failed to get usage(15): GPU is lost",
        signal=9,
        source="LSSI-ETH/plmfit#40",
    ),
    Text(
        "infrastructure",
        "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API "
        "call, "
        "so the stacktrace below might be incorrect.",
        "RuntimeError",
        "groups",
        source="OpenBMB/MiniCPM-V#356, hustvl/Vim#61",
    ),
    Text(
        "infrastructure",
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this "
        "GPU",
        signal=0,
        source="JosephKJ/OWOD#81",
    ),
    Text(
        "infrastructure",
        "DataLoader worker (pid 37) is killed by signal: Bus error. It is possible that dataloader's workers are out "
        "of "
        "shared memory. Please try to raise your shared memory limit.",
        "RuntimeError",
        source="open-mmlab/mmdetection#1997, bytedance/Protenix#2",
    ),
    Text(
        "infrastructure",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        signal=0,
        source="msr-fiddle/pipedream#28",
    ),
    Text(
        "infrastructure",
        "libcudnn_adv.so.9: cannot open shared object file: No such file or directory",
        "OSError",
        "build",
        source="NVIDIA/TransformerEngine#1853",
    ),
    Text(
        "infrastructure",
        "RuntimeError: Failed to import transformers.models.siglip.modeling_siglip because of the following error:\n"
        "flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        signal=0,
        source="zjysteven/lmms-finetune#32",
    ),
    Text(
        "infrastructure",
        "    import flash_attn_2_cuda as flash_attn_cuda\nImportError: libcudart.so.12: cannot open shared object "
        "file: No "
        "such file or directory",
        signal=0,
        source="Dao-AILab/flash-attention#631",
    ),
    Text(
        "infrastructure",
        "/TransformerEngine/transformer_engine/common/fused_attn/fused_attn_f16_arbitrary_seqlen.cu:373 in function "
        "operator(): cuDNN Error: CUDNN_BACKEND_TENSOR_DESCRIPTOR cudnnFinalize failedptrDesc->finalize() "
        "cudnn_status: "
        "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED.",
        "RuntimeError",
        source="NVIDIA/Megatron-LM#1882",
    ),
    Text(
        "infrastructure",
        "module 'transformer_engine' has no attribute 'pytorch'",
        "AttributeError",
        "build",
        source="NVIDIA/Megatron-LM#696",
    ),
    Text(
        "infrastructure",
        "z-pc:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not "
        "supported between these two devices",
        source="ray-project/ray_lightning#24",
    ),
    Text(
        "infrastructure",
        "rdma-test-gpu-worker-1:2919:2919 [5] misc/cudawrap.cc:33 NCCL WARN Cuda failure 'initialization error'",
        source="NVIDIA/nccl#1029",
    ),
    Text(
        "timeout",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
        "operation to complete",
        "RuntimeError",
        source="meta-pytorch/torchtune#2676",
    ),
    Text(
        "infrastructure",
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (10.3.0.61, "
        "2222).",
        signal=0,
        source="pytorch/pytorch#79388",
    ),
    Text(
        "infrastructure",
        "Timed out after 61 seconds waiting for workers. 1/2 workers joined.",
        "DistStoreError",
        "groups",
        source="pytorch/pytorch#111805",
    ),
    Text("infrastructure", "Failed to infer device type", "RuntimeError", "config", source="ai-dynamo/dynamo#391"),
    Text(
        "infrastructure",
        "Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object file: No such file or "
        "directory')",
        signal=0,
        source="vllm-project/vllm#9051",
    ),
    Text(
        "oom",
        "TENCENT64:47604:53083 [0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'\n"
        "TENCENT64:47604:53083 [0] include/alloc.h:206 NCCL WARN Failed to CUDA calloc async 24 bytes\n"
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        source="NVIDIA/Megatron-LM#1509",
    ),
    Text(
        "oom",
        "VM-0-16-ubuntu:392:494 [2] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'\n"
        "VM-0-16-ubuntu:392:494 [2] enqueue.cc:54 NCCL WARN Cuda failure 'invalid resource handle'",
        source="NVIDIA/TensorRT-LLM#1670",
    ),
    Text(
        "infrastructure",
        "ucpe-resource033018034100:6897:7102 [2] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() "
        "failed: "
        "Not Found",
        source="NVIDIA/nccl#1529",
    ),
    Text(
        "infrastructure",
        "Distributed package doesn't have NCCL built in",
        "RuntimeError",
        "config",
        source="our own run of pretrain_gpt.py with a build of torch for CPUs",
    ),
    Text(
        "invalid",
        "Using tensor model parallelism or context parallelism require setting the environment variable "
        "CUDA_DEVICE_MAX_CONNECTIONS to 1",
        "AssertionError",
        "config",
        source="our own run of pretrain_gpt.py",
    ),
]

FOURTH = [
    Text(
        "infrastructure",
        "socketPollConnect: connect to 22.11.219.25<47479> returned Connection refused, exceeded error retry count "
        "after "
        "35 attempts",
        source="kwsong0113/diffusion-forcing-transformer#31",
    ),
    Text(
        "error", ":41367:41367 [1] enqueue.cc:422 NCCL WARN Error : no algorithm/protocol available", source="nccl#653"
    ),
    Text(
        "timeout",
        "RuntimeError: NCCL communicator was aborted on rank 3.\nterminate called after throwing an instance of "
        "'std::runtime_error'\n  what():  [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1801256 milliseconds before timing out.",
        names="BROADCAST",
        source="huggingface/accelerate#157",
    ),
    Text(
        "infrastructure",
        "The client socket has timed out after 60s while trying to connect to (10.0.0.4, 29500).",
        "DistNetworkError",
        "groups",
        source="flagos-ai/FlagScale#314",
    ),
    Text(
        "infrastructure",
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system "
        "error\nncclSystemError: "
        "System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\n"
        "socketStartConnect: Connect to 172.17.8.10<45000> failed : Software caused connection abort",
        "DistBackendError",
        "groups",
        source="TaiMingLu/Della-Manual#2",
    ),
    Text("infrastructure", "Failed to initialize NVML: Unknown Error", signal=0, source="NVIDIA/nvidia-docker#1730"),
    Text(
        "infrastructure",
        "torch/cuda/__init__.py:546: UserWarning: Can't initialize NVML\n  warnings.warn(\"Can't initialize NVML\")",
        signal=0,
        source="pytorch/pytorch#109098",
    ),
    Text(
        "infrastructure",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable NVLink "
        "error "
        "detected during the execution",
        source="pytorch/pytorch#58155",
    ),
    Text(
        "infrastructure",
        "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "AcceleratorError",
        source="daydreamlive/scope#749",
    ),
    Text("error", "CUDA error: unspecified launch failure", "AcceleratorError", source="vllm-project/vllm#27430"),
    Text(
        "infrastructure",
        "Timed out initializing process group in store based barrier on rank: 6, for key: store_based_barrier_key:1 "
        "(world_size=8, worker_count=16, timeout=0:30:00)",
        "RuntimeError",
        "groups",
        source="huggingface/accelerate#157",
    ),
    Text(
        "infrastructure",
        "Error building extension 'fused_adam'",
        "RuntimeError",
        "build",
        source="deepspeedai/DeepSpeed#5277",
    ),
    Text(
        "infrastructure",
        "cc1plus: fatal error: cuda_runtime.h: No such file or directory\ncompilation terminated.",
        signal=0,
        source="deepspeedai/DeepSpeed#4889",
    ),
    Text(
        "infrastructure",
        "nvcc fatal   : Unsupported gpu architecture 'compute_86'\nninja: build stopped: subcommand failed.",
        signal=0,
        source="deepspeedai/DeepSpeedExamples#103",
    ),
    Text(
        "oom",
        "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is "
        "free. "
        "Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but "
        "unallocated.",
        "OutOfMemoryError",
        source="carolchenyx/MGFN.#35",
    ),
    Text(
        "oom",
        "CUDA out of memory. Tried to allocate 25.10 GiB. GPU 0 has a total capacty of 39.39 GiB of which 13.58 GiB is "
        "free. Including non-PyTorch memory, this process has 25.80 GiB memory in use. Of the allocated memory 25.23 "
        "GiB "
        "is allocated by PyTorch, and 12.97 MiB is reserved by PyTorch but unallocated.",
        "OutOfMemoryError",
        "build",
        source="deepspeedai/DeepSpeed#4715",
    ),
    Text(
        "infrastructure",
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        source="rwth-i6/returnn#1486",
    ),
    Text(
        "infrastructure",
        "No module named 'pydantic'",
        "ModuleNotFoundError",
        "import",
        source="our own run of pretrain_gpt.py",
    ),
    Text(
        "error",
        "NCCL error in: /opt/conda/conda-bld/pytorch_1616554786529/work/torch/lib/c10d/ProcessGroupNCCL.cpp:33, "
        "unhandled "
        "cuda error, NCCL version 2.7.8\nncclUnhandledCudaError: Call to CUDA function failed.",
        "RuntimeError",
        source="swz30/Restormer#75",
    ),
    Text(
        "timeout",
        "NCCL communicator was aborted on rank 6. Original reason for failure was: Watchdog caught collective "
        "operation "
        "timeout: WorkNCCL(SeqNum=37, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802339 milliseconds before "
        "timing "
        "out.",
        "RuntimeError",
        names="ALLREDUCE",
        source="lyuwenyu/RT-DETR#599, wwxu21/CUT#4",
    ),
]
