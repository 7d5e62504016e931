"""A KV connector for vLLM that simulates the transfer of caches from prefill engines to decode engines. It has only the
part that runs in the scheduler, modelled after NixlConnector (vLLM 0.32). Sender and receiver hold the blocks until the
transfer ends, at a time that VirtualExecutor determines."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass
class KvLoads(KVConnectorMetadata):
    """The transfers of a step: request → (number of tokens, index of the sending engine, the request's name in the
    sending engine)."""

    loads: dict[str, tuple[int, int, str]] = field(default_factory=dict)


class VirtualConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._loads: dict[str, tuple[int, int, str]] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        given = request.kv_transfer_params or {}
        there = request.num_prompt_tokens - num_computed_tokens if given.get("do_remote_prefill") else 0
        return there, there > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        given = request.kv_transfer_params or {}
        if given.get("do_remote_prefill"):
            given["do_remote_prefill"] = False  # only once: a preempted request computes its prompt again
            self._loads[request.request_id] = num_external_tokens, given["engine"], given["request"]

    def build_connector_meta(self, scheduler_output: Any) -> KvLoads:
        loads, self._loads = self._loads, {}
        return KvLoads(loads)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        given = request.kv_transfer_params or {}
        if not given.get("do_remote_decode"):
            return False, None
        return True, {"do_remote_prefill": True, "request": request.request_id}

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
