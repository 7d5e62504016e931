"""The analytic memory model: peak GiB of the fullest rank, and the probability that it does not fit.

Weights, gradients and optimizer state as tp, pp, ep, the distributed optimizer and ZeRO shard them; activations per
layer after Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", section 4),
counted from what Megatron-core's layers keep for the backward pass; as many micro batches in flight as the pipeline
schedule holds; logits and loss; communication buffers. `value` is what the framework allocates. Overheads on top of it
(context, fragmentation) enter only the probability of running out of memory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.simulate.encode import length, take
from autoscout.simulate.hardware.device import Hardware, hardware
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training import latent_attention as latent
from autoscout.simulate.training import stage_operators
from autoscout.simulate.training.combinations import Combinations
from autoscout.simulate.training.fleet import Fleet, depths, devices, fleets, read
from autoscout.simulate.training.inputs import REQUIRED, TIMES_ONLY, Inputs, by_precision, complete
from autoscout.simulate.training.rank_parameters import frozen_layers, layer_weights, rank_weights, trained
from autoscout.simulate.training.software import Variant, evidence, mixed, stacked, variants
from autoscout.simulate.training.stage import recomputed
from autoscout.simulate.training.stage_operators import by_stage
from kb.records import Configuration, Job

Array = np.ndarray
GIB = 2.0**30
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "process")
FRAGMENTATION = 0.02  # share of the allocated peak lost to fragmentation of the caching allocator
ERROR = 0.05  # standard deviation of log(measured / predicted), on held-out rows
UNSEEN = 0.12  # the same for unknown software; set after seeing the 13B runs of one published sweep
UNSEEN_FRAGMENTS = 0.06  # additional fragmentation of unknown software
FREEDOM = 4.0  # degrees of freedom of the residuals' Student's t
CAUTION = 0.5  # a configuration "fits" if it is no likelier than this to run out of memory
PRODUCTS = {"fp8": 1.0, "fp4": 0.5625}  # bytes of an input that products keep; 4 bits with a scale per 16
UNFUSED_NORM = 4.0  # extra bytes per element kept by an unfused norm: its fp32 copy
LOGITS = 8.0  # bytes per logit at the peak: fp32 logits and their softmax
# Bytes per logit of rows gathered over tp: in 16 bits, in fp32, log-softmax, its gradient and that of the logits.
GATHERED_LOGITS = 18.0
# Trainers of adapters in plain PyTorch, counted from litgpt's layers: bytes a norm keeps of an element of the residual
# stream (RMSNorm a copy in fp32, LayerNorm its input), of a head's queries, keys, values and outputs, of the inner
# tensors with and without a gate, and of the input of an adapted product (a copy after dropout, and its mask).
NORM, HEADS, INNER, ADAPTED = (4.0, 2.0), 8.0, (6.0, 2.0), 3.0
# Not visible in its code: bytes per logit, more of the stream, of an input that a 4-bit product reads, and of a
# 4-bit parameter. Fitted to litgpt's 38 LoRA and QLoRA rows (tests/tools/fit_adapters.py); the error with one model
# left out is 2.3 %.
EAGER_LOGITS, EAGER_STREAM, QUANTISED_INPUT, QUANTISED = 11.3, 3.8, 2.72, 0.76
CPU_PROCESS_GIB = 0.28  # interpreter, torch and Megatron-core of a CPU rank (../shared/facts/megatron-on-cpu.md)


class Memory:
    """`device`: that of rows that name none. `margin`: log of the factor learned from this job's measured peaks."""

    name = "memory"

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.margin = 0.0  # log of the factor
        self.spread = ERROR
        self.software: dict[str, float] = {}  # log likelihood of each software profile, by rows of the job

    @classmethod
    def of_job(cls, job: Job) -> "Memory":
        return cls(job.cluster.nodes[0].device)

    def applies(self, columns: Columns) -> str:
        missing = [name for name in REQUIRED if name not in columns]
        return f"it needs {', '.join(missing)}" if missing else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """`values`: measured peaks in GiB; inf where a row ran out of memory, so that it needs more than the device
        has. They settle the software (which profile of software.PROFILES), then a common factor, with a prior of
        ERROR around 1; out-of-memory rows can only raise it."""
        values = np.asarray(values, dtype=float)
        died = np.isposinf(values)
        some = variants(columns)
        if len(some) > 1:
            told = [np.log(values) - np.log(total) for total, _ in self._raw_of_each(some, length(columns))]
            short = [
                np.maximum(-each, 0) for each in self._pressure_of_each(some, length(columns))
            ]  # it should not fit
            left = [np.where(died, lack, each) for each, lack in zip(told, short, strict=True)]
            self.software = evidence(some, left, 2 * ERROR)
        raw = np.log(self._mixed(columns)[0])
        seen = np.isfinite(values) & np.isfinite(raw) & (values > 0)
        residual = np.log(values[seen]) - raw[seen]
        self.margin = float(residual.sum() / (len(residual) + 1)) if len(residual) else 0.0
        left_over = residual - self.margin
        self.spread = float(np.sqrt((ERROR**2 * 4 + np.sum(left_over**2)) / (4 + len(left_over))))
        # The log factor at which these rows just do not fit.
        needed = -self._pressure(columns)[died & np.isfinite(raw)]
        if len(needed) and needed.max() > self.margin:
            self.margin = min(float(needed.max()), self.margin + 2 * ERROR)

    def predict(self, columns: Columns) -> Prediction:
        columns, of = _once(columns)
        raw, between, parts = self._mixed(columns)
        factor = np.exp(self.margin)
        return Prediction(
            value=(factor * raw)[of],
            error=np.hypot(self._spread(variants(columns)), between)[of],
            parts={name: (factor * part)[of] for name, part in parts.items()},
        )

    def oom_probability(self, columns: Columns) -> Array:
        """(n,) that a row runs out of the memory of one of its devices; NaN where those are unknown."""
        columns, of = _once(columns)
        some = variants(columns)
        spread = self._spread(some)
        each = self._pressure_of_each(some, length(columns))
        # Mist's 59 rows reserve 3 to 18 % more than they allocate; FRAGMENTATION has the least of that.
        more = np.where(spread == UNSEEN, UNSEEN_FRAGMENTS, 0.0)
        chances = [_chance((pressure + self.margin + more) / spread) for pressure in each]
        if len(some) == 1:
            return chances[0][of]
        *_, weights = mixed([np.ones(1)] * len(some), self._shares(some))
        return np.sum([w * chance for w, chance in zip(weights, chances, strict=True)], axis=0)[of]

    def _spread(self, some: list[Variant]) -> Array:
        """(n,) or (1,): of log(measured / predicted); wider for software that no profile describes quite, until rows of
        the job have told."""
        unknown = np.isfinite(some[-1].log_share) & (len(some) > 1) & (not self.software)
        return np.where(unknown, UNSEEN, self.spread)

    def _shares(self, some: list[Variant]) -> list[Array]:
        return [each.log_share + self.software.get(each.name, 0.0) for each in some]

    def _mixed(self, columns: Columns) -> tuple[Array, Array, dict[str, Array]]:
        """(n,) GiB, the deviation of its logarithm between software profiles, and its parts."""
        some = variants(columns)
        each = self._raw_of_each(some, length(columns))
        if len(each) == 1:
            return each[0][0], np.zeros(len(each[0][0])), each[0][1]
        value, between, weights = mixed([total for total, _ in each], self._shares(some))
        parts = {name: sum(w * parts[name] for w, (_, parts) in zip(weights, each, strict=True)) for name in PARTS}
        scale = value / np.sum(list(parts.values()), axis=0)
        return value, between, {name: scale * part for name, part in parts.items()}

    def _pressure(self, columns: Columns) -> Array:
        """(n,) log(needed / available): of the mean over what software may run."""
        some = variants(columns)
        each = self._pressure_of_each(some, length(columns))
        return each[0] if len(each) == 1 else np.log(mixed([np.exp(p) for p in each], self._shares(some))[0])

    def _raw_of_each(self, some: list[Variant], n: int) -> list[tuple[Array, dict[str, Array]]]:
        if len(some) == 1 or "stages" in some[0].columns:
            return [self._raw(each.columns) for each in some]
        total, parts = self._raw(stacked(some, n))
        cuts = [slice(i * n, (i + 1) * n) for i in range(len(some))]
        return [(total[cut], {name: part[cut] for name, part in parts.items()}) for cut in cuts]

    def _pressure_of_each(self, some: list[Variant], n: int) -> list[Array]:
        if len(some) == 1 or "stages" in some[0].columns:
            return [self._known_pressure(each.columns) for each in some]
        return np.split(self._known_pressure(stacked(some, n)), len(some))

    def filled(self, columns: Columns) -> Array:
        """(n,) what is needed over what there is, of the rank where that is largest; NaN on unknown devices."""
        columns, of = _once(columns)
        return np.exp(self._pressure(columns) + self.margin)[of]

    def fits(self, columns: Columns) -> Array:
        """(n,) bool; False where the device is unknown."""
        return self.oom_probability(columns) <= CAUTION

    def _known_pressure(self, columns: Columns) -> Array:
        """(n,) log(needed / available) of the rank where that is largest. On a mixed cluster later stages, which hold
        fewer micro batches, may lie on the smaller devices."""
        columns, of = by_stage(columns)
        pressure = self._pressure_as_described(columns)
        if of is None:
            return pressure
        highest = np.full(of[-1] + 1, np.nan)  # of an unknown device
        np.fmax.at(highest, of, pressure)
        return highest

    def _pressure_as_described(self, columns: Columns) -> Array:
        groups = [(rows, some, complete(some)) for rows, some in by_precision(columns)]
        pressure = np.full(sum(x.n for _, _, x in groups), np.nan)
        for rows, some, x in groups:
            # A job's `memory_gib` is its smallest device's: on a mixed cluster the hardware files say more.
            mixed = len(devices(some, self.device)) > 1
            given = np.nan if mixed else some.get("memory_gib", np.nan)
            stated = np.broadcast_to(np.asarray(given, dtype=float), x.n)
            for fleet in fleets(some, x.n, self.device):
                local = fleet.rows
                pressure[rows[local]] = _tightest(x.take(local), fleet.of(local), stated[local])
        return pressure

    def _raw(self, columns: Columns) -> tuple[Array, dict[str, Array]]:
        """(n,) GiB and its parts, of the fullest recorded stage where a table describes every one."""
        each, of = by_stage(columns)
        total, parts = self._as_described(each)
        if of is None:
            return total, parts
        seen = np.nan_to_num(each["stage_recorded"], nan=1.0) > 0
        each, of, total = take(each, seen), of[seen], total[seen]
        parts = take(parts, seen)
        fullest = np.lexsort((-total, of))[np.unique(np.sort(of), return_index=True)[1]]
        return total[fullest], {name: part[fullest] for name, part in parts.items()}

    def _as_described(self, columns: Columns) -> tuple[Array, dict[str, Array]]:
        groups = [(rows, some, complete(some)) for rows, some in by_precision(columns)]
        n = sum(x.n for _, _, x in groups)
        parts = {name: np.empty(n) for name in PARTS}
        on_cpu = any(hw is not None and hw.name == "cpu" for hw in map(hardware, devices(columns, self.device)))
        for rows, some, x in groups:
            for name, gib in peak(x).items():
                parts[name][rows] = gib
            for fleet in fleets(some, x.n, self.device):
                local = fleet.rows[np.any(np.array(fleet.told)[:, fleet.rows] > 0, axis=0)]
                if len(local):
                    for name, gib in _peak_of_unequal(x.take(local), fleet.of(local)).items():
                        parts[name][rows[local]] = gib
        if on_cpu or (not np.any(np.asarray(columns.get("cuda", True)))):
            parts["process"][:] = CPU_PROCESS_GIB
        return np.sum(list(parts.values()), axis=0), parts


def _once(columns: Columns) -> tuple[Columns, Array]:
    """One row of all that need the same memory, and which of them each row is."""
    return Combinations(columns, read(columns)).of(TIMES_ONLY)


def _chance(deviations: Array) -> Array:
    """Student's t: what no formula counts (a workspace, a fragment) is rarely small where it is not none."""
    from scipy.special import stdtr

    return stdtr(FREEDOM, deviations)


def estimate_gib(attributes: Mapping[str, Any], configuration: Configuration) -> float:
    """Peak of one configuration of a job whose space has these attributes."""
    columns = {name: value for name, value in attributes.items() if name != "degrees"} | configuration.knobs
    return float(Memory().predict(columns).value[0])


def _of_kinds(x: Inputs, fleet: Fleet) -> list[tuple[Hardware, Array, Array]]:
    """The first stage on every kind of device and the last stage: its device, its number and its layers."""
    per_stage = x.gpus / x.pp
    found = []
    for kind, (hw, layers) in enumerate(zip(fleet.kinds, depths(x, fleet), strict=True)):
        begins = np.floor(sum(fleet.counts[:kind], np.zeros(x.n)) / per_stage + 1e-9)
        found.append((hw, np.minimum(begins, x.pp - 1), layers))
    return [*found, (fleet.kinds[-1], x.pp - 1, found[-1][2])]


def _tightest(x: Inputs, fleet: Fleet, stated: Array) -> Array:
    """The largest log(needed / available) of the first stage on every kind of device and the last stage."""
    found = []
    for hw, index, layers in _of_kinds(x, fleet):
        memory = np.where(stated > 0, stated, hw.memory_gib)
        room = np.maximum((memory - hw.context_gib) / (1 + FRAGMENTATION), 1e-9)
        where = x.stage_at if np.any(_cut(x)) else index  # rows that describe one stage each
        found.append(np.log(rank_bytes(of_stage(x, where, layers)) / GIB / room))
    return np.max(np.broadcast_arrays(*found), axis=0)


def _peak_of_unequal(x: Inputs, fleet: Fleet) -> dict[str, Array]:
    """As `peak`, for stages whose number of layers differs between kinds of device."""
    each = [of_stage(x, index, layers) for _, index, layers in _of_kinds(x, fleet)]
    fullest = np.argmax(np.broadcast_arrays(*map(rank_bytes, each)), axis=0)
    return {n: np.choose(fullest, np.broadcast_arrays(*(parts[n] for parts in each))) / GIB for n in PARTS}


def rank_bytes(parts: dict[str, Array]) -> Array:
    return sum(parts.values(), np.zeros(1))


def peak(x: Inputs) -> dict[str, Array]:
    """GiB by component, (n,) each, of the fuller of the first and the last stage; where a row describes one stage of
    a plan, of that."""
    first, last = of_stage(x, x.stage_at), of_stage(x, x.pp - 1)
    fuller = (rank_bytes(first) >= rank_bytes(last)) | _cut(x)
    return {name: np.broadcast_to(np.where(fuller, first[name], last[name]), x.n) / GIB for name in PARTS}


def _cut(x: Inputs) -> Array:
    """Whether a row describes one stage, cut between operators."""
    return ~np.isnan(x.stage_operators)


def of_stage(x: Inputs, index: Array, of_kind: Array | None = None) -> dict[str, Array]:
    """Bytes by component on a rank of pipeline stage `index`; `of_kind`: its layers, where these differ by device."""
    b = 4.0 if x.dtype == "fp32" else 2.0
    first, cut = index == 0, _cut(x)
    layers = np.ceil(x.layers / x.pp) if of_kind is None else of_kind
    if np.any(cut):
        told = np.broadcast_arrays(x.stage_from, x.stage_operators, x.layers)
        layers = np.array([stage_operators.weights(*row) if row[1] > 0 else np.nan for row in zip(*told, strict=True)])
        layers = np.where(cut, layers, np.ceil(x.layers / x.pp))
        x = Inputs(**{**vars(x), "tp": np.where(cut, x.stage_tp, x.tp)})
    dense, expert = rank_weights(x, layers)
    inner = ~first & (index < x.pp - 1)
    positions = np.where(first | (x.pp == 1), 0.0, x.learned_positions * x.seq_len * x.hidden)
    dense = dense - positions - np.where(inner, x.vocab * x.hidden / x.tp, 0.0)
    parts = _states(x, dense, expert, b)
    parts["activations"], parts["logits"] = _activations(x, b, layers, index)
    if x.dtype == "fp16":  # the update copies a rank's own gradients to fp32, when the activations are gone
        owned = parts["optimizer"] / 12
        freed = np.where((x.distopt > 0) | (x.zero > 0), 0.0, 2.0)  # one by one, where they are in no common buffer
        copies = owned * (4 - freed) * (x.grad_bytes == 2)
        parts["gradients"] = parts["gradients"] + np.maximum(copies - parts["activations"] - parts["logits"], 0)
    parts["buffers"] = _buffers(x, b)
    parts["process"] = np.zeros(1)
    return parts


def _states(x: Inputs, dense: Array, expert: Array, b: float) -> dict[str, Array]:
    """Bytes of weights, gradients and optimizer state: 2 + 4 + 12 a parameter in mixed precision, 4 + 4 + 8 in fp32."""
    replicas = x.dp * x.cp
    group = np.where(np.isnan(x.zero_group), replicas, x.zero_group)
    expert_group = np.maximum(replicas * x.tp / (x.ep * x.etp), 1)
    moments = 8.0 if b == 4 else 12.0
    own, own_expert = trained(x, dense, expert)

    def over(sharded: Array, bytes_each: Array | float, dense: Array = own, expert: Array = own_expert) -> Array:
        return bytes_each * (dense / np.where(sharded, group, 1) + expert / np.where(sharded, expert_group, 1))

    # FSDP shards the fp32 weights, which are the master weights too; what it gathers is among the buffers.
    weights = over(x.zero == 3, np.where(x.zero == 3, 4.0, b), dense, expert)
    moments = np.where(x.zero == 3, 8.0, moments)
    # QLoRA: the embedding and the head are not quantized.
    embeddings = np.minimum(x.vocab * x.hidden * np.where(x.tied > 0, 1, 2), dense)
    quantised = QUANTISED * (dense - embeddings) + b * embeddings
    return {
        "weights": np.where(x.lora == 2, quantised, weights),
        "gradients": over(x.zero >= 2, x.grad_bytes),
        "optimizer": over((x.distopt > 0) | (x.zero > 0), moments),
    }


def _activations(x: Inputs, b: float, layers: Array, index: Array) -> tuple[Array, Array]:
    """Bytes kept for the backward pass on a stage, and bytes of logits and loss."""
    tokens = x.mbs * x.seq_len / x.cp
    own = tokens / np.where(x.sp > 0, x.tp, 1)
    plain, scores, selective = _layer_bytes(x, b, tokens, own)
    inputs = b * own * x.hidden  # what a recomputed layer keeps
    whole = recomputed(x)
    group = np.where((x.ar == 2) & (x.ar_method == 0) & np.isnan(x.recomputed), x.ar_layers, 1)
    kept = (1 - whole) * (plain + scores) + whole * inputs / group
    working = np.where(whole > 0, (plain + scores) * group, selective)
    stage = np.ceil((layers - frozen_layers(x)) / x.vpp) * kept
    if np.any(_cut(x)):
        of_stage, again = _kept_operators(x, b, tokens, own)
        stage, working = np.where(_cut(x), of_stage, stage), np.where(_cut(x), again, working)
    interleaved = (x.pp - index - 1) * 2 + (x.vpp - 1) * x.pp + 1
    chunks = np.where(x.vpp > 1, np.fmin(interleaved, x.micro_batches * x.vpp), np.fmin(x.pp - index, x.micro_batches))
    ends = index == x.pp - 1
    split = tokens * x.vocab / x.tp * np.where(_eager(x) | (x.fused_activation == 0), EAGER_LOGITS, LOGITS)
    if np.any(x.split_loss == 0):
        split = np.where((x.split_loss == 0) & (x.tp > 1), GATHERED_LOGITS * tokens * x.vocab, split)
    head = np.where(ends, split + 2 * inputs, 0.0)
    masks = np.where(index == 0, x.dropout * own * x.hidden, 0.0)
    # Backward, unfused attention holds gradients of its scores, after and before the softmax, once the loss is freed.
    # Plain operators: scaled, masked, and in fp32, each with its gradient.
    each = 2 * b + np.where(x.fused_activation == 0, 20.0, 0.0)
    gradients = np.where(x.attention == 0, each * tokens * x.heads * x.seq_len / x.tp, 0.0)
    back = np.where(x.attention == 0, np.maximum(working + gradients - head, 0), working)
    return chunks * (stage + masks) + back, head


def _kept_operators(x: Inputs, b: float, tokens: Array, own: Array) -> tuple[Array, Array]:
    """The same for stages cut between operators: bytes kept of a micro batch, and those recomputed at once."""
    stream, score = own * x.hidden, tokens * x.heads * x.seq_len / x.tp
    inner, context = tokens * x.ffn / x.tp, tokens * x.heads * x.head_dim / x.tp
    bytes_of = {
        **{"xadyeh": b * stream, "no": x.dropout * stream, "spr": b * score, "m": x.dropout * score},
        **{"c": b * context, "fg": b * inner, "q": b * context * (1 + 2 * x.kv_heads / x.heads)},
    }
    size = {name: np.broadcast_to(each, x.n) for names, each in bytes_of.items() for name in names}
    stage = np.broadcast_arrays(x.stage_from, x.stage_operators, x.layers, x.stage_recomputed)
    found = np.full((x.n, 2), np.nan)
    for i in np.flatnonzero(np.broadcast_to(_cut(x), x.n)):
        first, number, layers, share = (float(v[i]) for v in stage)
        found[i] = stage_operators.kept(first, number, layers, share, {name: float(v[i]) for name, v in size.items()})
    return found[:, 0], found[:, 1]


def _eager(x: Inputs) -> Array:
    """Adapters trained with plain PyTorch kernels, without Transformer Engine."""
    return (x.lora > 0) & (x.te == 0)


def _layer_bytes(x: Inputs, b: float, tokens: Array, own: Array) -> tuple[Array, Array, Array]:
    """Bytes that one layer keeps of one micro batch, without the score matrix and of it, and those that selective
    recomputation makes again. Split by tp only: queries, keys, values, the attention's output, and the feed-forward
    block's inner tensors. On every rank (or split by sp): inputs and outputs of both norms, dropout masks. In FP8 the
    products keep their inputs in 8 bits. Trainers of adapters in plain PyTorch: see NORM."""
    h, gated, eager = x.hidden, x.gated > 0, _eager(x)
    eight = x.dtype in PRODUCTS
    product = PRODUCTS.get(x.dtype, b)
    plain = 2 * b + 2 * product + 2 * x.dropout
    plain = plain + np.where(x.fused_norm == 0, 2 * UNFUSED_NORM, 0.0)
    stream = own * h * np.where(eager, x.norms * np.where(gated, *NORM) + EAGER_STREAM, plain)
    rotated = np.where((x.fused_activation == 0) & (x.learned_positions == 0), b * (x.heads + x.kv_heads), 0.0)
    qkv = tokens * x.head_dim * (x.heads * (2 * b + eight) + 2 * x.kv_heads * b + rotated) / x.tp
    attended = np.where(eager, HEADS * tokens * x.head_dim * x.heads / x.tp, qkv)  # repeated keys and values
    attended = attended + np.where(x.kv_lora_rank > 0, latent.kept(x, own, b, product), 0.0)
    matrices = np.where(gated, 3.0, 2.0)
    activated = np.where(gated & (x.fused_activation == 0), b, 0.0)  # what the gate multiplies
    inner = (matrices - 1) * b + product + activated
    dense = tokens * x.ffn / x.tp * np.where(eager, np.where(gated, *INNER), inner)
    inside = x.expert_ffn * inner
    sparse = own * x.topk * ((b + product) * h + inside) + own * x.experts * 4
    others = x.heads * x.head_dim + (matrices - 1) * h + x.ffn  # inputs of the products after queries, keys and values
    copies = np.where(x.lora > 0, ADAPTED * tokens * (h + np.where(x.adapters > 0, others, 0.0)), 0.0)
    copies = copies + np.where(x.lora == 2, QUANTISED_INPUT * tokens * (h + others), 0.0)
    softmax = np.where(x.fused_activation == 0, 4.0, 0.0)  # a copy in fp32
    scores = tokens * x.heads * x.seq_len / x.tp * (b + softmax + (b + 1) * x.dropout)
    unfused = np.where((x.attention == 0) & (x.again_core == 0), scores, 0.0)
    block = np.where(x.experts > 0, sparse, dense)
    output = np.where(x.experts > 0, own * x.topk * x.expert_ffn, tokens * x.ffn / x.tp) * product
    again = np.where(x.again_block > 0, block + product * own * h, x.again_activation * output)
    again = again + x.again_norms * product * own * h + x.again_up * latent.again(x, tokens, own, b, product)
    # The output of a fused core that is recomputed is saved by both sides.
    twice = x.again_core * (x.attention > 0) * b * tokens * x.heads * x.head_dim / x.tp
    return stream + attended + block + copies + twice - again, unfused, again


def _buffers(x: Inputs, b: float) -> Array:
    """Gathered layers of ZeRO-3 (the one that runs and the next), gathered inputs of sequence parallelism."""
    gathered = np.where(x.zero == 3, 2 * b * layer_weights(x) + x.grad_bytes * layer_weights(x), 0.0)
    inputs = np.where((x.sp > 0) & (x.tp > 1), 2 * b * x.mbs * x.seq_len / x.cp * x.hidden, 0.0)
    return gathered + inputs
