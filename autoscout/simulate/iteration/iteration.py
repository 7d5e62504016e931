"""The time of one iteration of RL post-training: generate answers, compute their log-probabilities, update the policy,
and send the new weights to the engine.

    iteration = rollout + tail + logprobs + update + weights      if phases alternate
              = max(rollout, logprobs + update) + weights         if training uses answers of an older policy, and
                                                                  separate devices generate them

Rollouts are priced by the event simulation of serving engines (rollouts.py), passes and optimizer by the training model
(training/step.py), and the weight transfer by the links of the training devices. `tail` is the end of the rollout, when
few answers are left. If training may use answers of an older policy, it does not wait for the longest answer:
unfinished answers continue in the next iteration. With a lag of k ≥ 2 updates, k iterations' answers are in flight."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.job.words import listed
from autoscout.simulate.combinations import Combinations
from autoscout.simulate.encode import job_of, length, software_of
from autoscout.simulate.hardware.device import Hardware, hardware
from autoscout.simulate.iteration.cpu_ranks import Parts, called, gathered, instead_of_launches, shared
from autoscout.simulate.iteration.iteration_columns import DEFAULTS
from autoscout.simulate.iteration.measured_phases import COLUMN as MEASURED
from autoscout.simulate.iteration.phase_correction import PhaseCorrection
from autoscout.simulate.iteration.rollouts import RolloutTimes, answered, generated, lengths
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.serving_device import has_constants
from autoscout.simulate.training.correction import Alike, Correction, layout
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.rank_parameters import rank_weights
from autoscout.simulate.training.step import Training, topology
from kb.records import Job, Traffic

Array = np.ndarray
# Host seconds to transfer one weight tensor to the engine: four runs of Llama-3.1-8B under NeMo-RL 0.3 on 8 H100 took 4
# to 8 s for 291 tensors (docs/lab/rl.md). No other framework was measured.
TENSOR_S = 0.02
# Fitted to the runs that TENSOR_S is based on. STEPPED: generation time relative to that of a server with the same
# answers. It exceeds 1, because the engine returns the log-probability of every token and the trainer drives each
# engine step. FORWARD: time of a log-probability pass as a share of the forward and backward passes of a training step.
# It exceeds a third, because a log-probability pass keeps fp32 logits.
STEPPED, FORWARD = 1.27, 0.43
_TENSORS = 9  # tensors per layer: seven matrices and two norms
_GUESSED = 0.15  # log error if a job states only the mean answer length, so that the spread is assumed (rollouts.py)
# Log error for work outside of the modelled phases: data transfers between phases and the framework's own work. Six
# iterations of NeMo-RL on 8 to 32 H100 had a root mean square error of 13 % (docs/lab/rl.md).
_BETWEEN = 0.12
_ROLLOUT = (
    "answers", "group", "longest", "roll_engine", "roll_version", "roll_tp", "roll_share", "roll_seqs", "roll_tokens",
    "roll_eager", "roll_gpus", "gpus", "gpu", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated",
    "vocab", "tied", "experts", "topk", "expert_ffn", "shared_ffn", "dense_layers", "memory_gib", "threads",
    "token_calls", "token_layer_calls",
)  # fmt: skip
_PHASE_OF = {"tail": "rollout"}  # parts of a prediction that are measured with another one
_MOST_KNOWN = 1 << 14  # limit on the entries of _KNOWN
_KNOWN: dict[Any, tuple[float, ...]] = {}  # cache of `_once`


class Iteration:
    name = "iteration"

    def __init__(self, device: str = "") -> None:
        self.device, self.training = device, Training(device)
        self.correction: Correction | None = None
        self.phases: dict[str, PhaseCorrection] = {}  # by phase, if runs of the job have timed phases
        self.rest = 0.0  # measured seconds that belong to no phase, per answer

    @classmethod
    def of_job(cls, job: Job) -> "Iteration":
        return cls(job.cluster.nodes[0].device)

    def applies(self, columns: Columns) -> str:
        missing = [name for name in ("answers", "longest") if name not in columns]
        if missing:
            given = {"answers": "answers per iteration", "longest": "the token limit of an answer"}
            return f"the launch line does not give {listed([given[name] for name in missing])}"
        if not isinstance(columns.get("traffic"), Traffic) or not columns["traffic"].output_len:
            return (
                "predictions of an iteration need traffic.input_len (mean tokens of a prompt) and traffic.output_len "
                "(mean tokens of an answer)"
            )
        kind = _kind(columns, self.device)
        served = np.any(np.atleast_1d(np.asarray(columns.get("roll_engine", ""), dtype=str)) != "")
        if served and not has_constants(kind):
            return f"the serving model has no constants for {kind}"
        return self.training.applies({**columns, "seq_len": 1.0, "global_batch": 1.0})

    def fit(self, columns: Columns, values: Array) -> None:
        parts, error, of_phases = self._parts(columns)
        self.correction, self.phases, self.rest = None, {}, 0.0
        timed = columns.get(MEASURED)
        if timed is not None and np.isfinite(timed["rollout"]).any():
            layouts = _layouts(columns)
            self.phases = {name: PhaseCorrection(each, layouts, timed[name]) for name, each in of_phases.items()}
            self.rest = float(np.nanmedian(timed["rest"] / columns["answers"]))
        elif (np.isfinite(values) & np.isfinite(error)).any():
            self.correction = Correction(parts, _alike(columns), error, np.asarray(values))

    def predict(self, columns: Columns) -> Prediction:
        """Seconds of an iteration; NaN where the weights or one answer exceed the engine's share of the memory."""
        parts, error, of_phases = self._parts(columns)
        if self.phases:
            return self._by_phase(columns, parts, of_phases)
        if self.correction is not None:
            return self.correction.apply(parts, _alike(columns), error)
        return Prediction(value=np.sum(list(parts.values()), axis=0), error=error, parts=parts)

    def _by_phase(self, columns: Columns, parts: dict[str, Array], of_phases: dict[str, Parts]) -> Prediction:
        layouts = _layouts(columns)
        factors = {name: self.phases[name].apply(each, layouts) for name, each in of_phases.items()}
        found = {name: factors[_PHASE_OF.get(name, name)][0] * seconds for name, seconds in parts.items()}
        found["rest"] = np.broadcast_to(self.rest * np.asarray(columns["answers"], dtype=float), len(layouts))
        whole = np.sum(list(found.values()), axis=0)
        errors = [factors[_PHASE_OF.get(name, name)][1] * found[name] for name in parts]
        return Prediction(value=whole, error=np.sqrt(np.square(errors).sum(axis=0)) / whole, parts=found)

    def _parts(self, columns: Columns) -> tuple[dict[str, Array], Array, dict[str, Parts]]:
        """(seconds by part, log error, seconds by phase of measured_phases.PHASES and component)"""
        n = length(columns)
        x = {**columns, **_completed(columns, n)}
        rollout = self._rollout(x, n)
        update, logprobs, error = self._passes(x, n)
        weights = np.where(x["roll_engine"] == "", 0.0, self._weights(x, n))
        older, apart = x["lag"] > 0, x["roll_gpus"] > 0
        answers = np.where(older, rollout.full, rollout.steady)
        training = total(update) + total(logprobs)
        exposed = np.where(older & apart, np.maximum(answers - training, 0.0), answers)
        parts = {
            "rollout": exposed,
            "tail": np.where(older, 0.0, rollout.tail),
            "logprobs": total(logprobs),
            "update": total(update),
            "weights": weights,
        }
        whole = np.sum(list(parts.values()), axis=0)
        of_rollout = np.where(older & apart, answers > training, (answers + parts["tail"]) / whole)
        guessed = 0.0 if isinstance(columns["traffic"].output_len, list) else _GUESSED
        own = np.hypot(of_rollout * rollout.error, (1 - of_rollout) * error)
        generating = parts["rollout"] + parts["tail"]
        of_phases = {
            "rollout": {"host": generating * rollout.host, "device": generating * (1 - rollout.host)},
            "logprobs": logprobs,
            "update": update,
            "weights": {"weights": weights},
        }
        return parts, np.sqrt(own**2 + (guessed * of_rollout) ** 2 + _BETWEEN**2), of_phases

    def _rollout(self, x: Mapping[str, Any], n: int) -> RolloutTimes:
        """Rollout times, computed once for each distinct combination of the columns in _ROLLOUT."""
        at_once = np.maximum(x["lag"], 1.0)
        own = {name: np.broadcast_to(x[name], (n,)) for name in _ROLLOUT if name in x}
        own["answers"] = own["answers"] * at_once
        some, of = Combinations(own, [*own]).of()
        kind, count = _kind(x, self.device), length(some) if some else 1
        others = {name: value for name, value in x.items() if name not in _ROLLOUT and np.ndim(value) == 0}
        rows = [
            {name: value if np.ndim(value) == 0 else value[i : i + 1] for name, value in some.items()}
            for i in range(count)
        ]
        found = [_once({**others, **row}, kind, self.training) for row in rows]
        steady, tail, full, error, host = (np.array(values)[of] for values in zip(*found, strict=True))
        return RolloutTimes(steady, tail, full / at_once, error, host)

    def _passes(self, x: Mapping[str, Any], n: int) -> tuple[Parts, Parts, Array]:
        """(seconds of the updates by component, those of the log-probabilities, (n,) log error); (n,) seconds each"""
        tokens, hw = _tokens(x, n), _hardware(x, self.device)
        filled = np.maximum(np.floor(x["fill"] / tokens), 1)

        def step(mbs: Array, samples: Array, ar: Any) -> tuple[Prediction, Array]:
            """(one pass over the samples, (n,) micro batches of a rank)"""
            each = np.where(x["fill"] > 0, filled, mbs)
            given = {**x, "seq_len": tokens, "mbs": each, "global_batch": samples, "ar": ar}
            return self.training.predict(given), np.maximum(np.ceil(samples / (each * x["gpus"])), 1)

        ar = x.get("ar", "none")
        passed, micro = step(x["mbs"], x["answers"] / x["updates"], ar)
        again = np.where(np.broadcast_to(np.asarray(ar, dtype=str), (n,)) == "full", called(hw, x, "again"), 0.0)
        parts = {**passed.parts, "dp": passed.parts["dp"] + micro * gathered(hw, x)}
        update = shared(hw, x, instead_of_launches(parts, micro * (called(hw, x, "micro") + again)))
        logprobs: Parts = {}
        for passes, mbs in (("old", "probe_mbs"), ("reference", "reference_mbs")):
            if np.any(x[passes] > 0):
                computed, micro = step(x[mbs], x["answers"], "none")
                forward = {k: v * FORWARD for k, v in computed.parts.items() if k not in ("optimizer", "dp")}
                forward = shared(hw, x, instead_of_launches(forward, micro * called(hw, x, "pass")))
                logprobs = {name: logprobs.get(name, 0.0) + x[passes] * value for name, value in forward.items()}
        updates = x["passes"] * x["updates"]
        return {k: updates * v for k, v in update.items()}, logprobs or {"compute": np.zeros(n)}, passed.error

    def _weights(self, x: Mapping[str, Any], n: int) -> Array:
        """(n,) seconds to gather the weight shards, send them to the engine's devices if separate, and copy them."""
        hw = _hardware(x, self.device)
        y = complete({**x, "seq_len": 1.0, "mbs": 1.0})
        links = topology(hw, y)
        dense, expert = rank_weights(y)
        size = 2.0 * (dense * y.tp + expert * y.ep * y.etp) * y.pp
        gathered = np.where((y.zero == 3) | (y.tp * y.pp * y.ep > 1), links.all_gather(size, y.gpus, np.ones(1)), 0.0)
        away = np.where(x["roll_gpus"] > 0, links.send(size, y.gpus), 0.0)
        copied = 2 * size / (1e9 * hw.memory_gb_s * hw.elementwise.bandwidth)
        return np.broadcast_to(gathered + away + copied + TENSOR_S * (_TENSORS * y.layers + 3), (n,))


def _once(row: Mapping[str, Any], kind: str, training: Training) -> tuple[float, ...]:
    """RolloutTimes of one configuration, as floats; cached, because searches predict the same ones repeatedly."""
    key = kind, *sorted((name, str(value)) for name, value in row.items())
    if key not in _KNOWN:
        engine = str(np.atleast_1d(row["roll_engine"])[0])
        run = answered(_as_server(row, engine), kind) if engine else generated(training, _hardware(row, kind), row)
        slower = STEPPED if engine else 1.0
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        seconds = (slower * float(each[0]) for each in (run.steady, run.tail, run.full))
        _KNOWN[key] = *seconds, float(run.error[0]), float(run.host[0])
    return _KNOWN[key]


def tokens_of_iteration(columns: Columns) -> Array:
    """(n,) tokens of all prompts and answers of an iteration, without padding."""
    n = length(columns)
    x = {**columns, **_completed(columns, n)}
    return x["answers"] * _tokens({**x, "padded": np.zeros(n)}, n)


def devices_of_iteration(columns: Columns) -> Array:
    """(n,) devices in use: training devices, plus separate devices for rollouts, if any."""
    return np.asarray(columns["gpus"], dtype=float) + np.asarray(columns.get("roll_gpus", 0.0), dtype=float)


def _completed(columns: Columns, n: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, default in {"mbs": 1.0, **DEFAULTS}.items():
        words = default == ""
        usual = found[default] if isinstance(default, str) and not words else default
        given = columns.get(name, usual)
        values = np.broadcast_to(np.asarray(given, dtype=str if words else float), (n,))
        found[name] = values if words else np.where(np.isnan(values), np.asarray(usual, dtype=float), values)
    return found


def _tokens(x: Mapping[str, Any], n: int) -> Array:
    """(n,) mean tokens of a training sequence: prompt, answer and padding."""
    keys = np.stack(
        [np.broadcast_to(x[name], (n,)) for name in ("answers", "longest", "padded", "mbs", "gpus")], axis=1
    )
    some, of = np.unique(keys, axis=0, return_inverse=True)
    found = np.empty(len(some))
    for i, (answers, longest, padded, mbs, gpus) in enumerate(some.tolist()):
        prompt, each = lengths(x["traffic"], int(longest), int(answers))
        together = {0: 1.0, 1: mbs}.get(int(padded), answers / gpus)
        below = (np.arange(len(each) + 1) / len(each)) ** max(together, 1.0)
        found[i] = prompt + float(each @ np.diff(below))  # expected tokens, padded to the longest of `together` answers
    return found[of.ravel()]


def _as_server(x: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """The rollout engine's configuration as columns of the serving model."""
    devices = np.where(x["roll_gpus"] > 0, x["roll_gpus"], x["gpus"])
    own = {
        "framework": engine, "version": x["roll_version"],
        "tp": x["roll_tp"], "dp": np.maximum(devices // x["roll_tp"], 1),
        "gpu_memory_utilization": x["roll_share"], "max_num_seqs": x["roll_seqs"],
        "max_num_batched_tokens": x["roll_tokens"], "eager": x["roll_eager"] > 0, "dtype": "bf16", "engines_apart": 1.0,
    }  # fmt: skip
    return {**{name: value for name, value in x.items() if name not in ("pp", "ep", "software")}, **own}


def total(parts: Parts) -> Array:
    return np.sum(list(parts.values()), axis=0)


def _alike(columns: Columns) -> Alike:
    n = length(columns)
    return Alike(_layouts(columns), *(np.broadcast_to(of(columns), n) for of in (job_of, software_of)))


def _layouts(columns: Columns) -> Array:
    n = length(columns)
    x = _completed(columns, n)
    knobs = [
        (x["mbs"], 0.7),
        (x["roll_tp"], 0.7),
        (x["roll_seqs"], 1.5),
        (1 + x["roll_gpus"], 1.0),
        (1 + x["lag"], 1.0),
        (x["threads"], 0.7),
        (np.broadcast_to(np.asarray(columns["gpus"], dtype=float), n), 0.7),
    ]
    return layout(knobs, n)


def _kind(columns: Mapping[str, Any], device: str) -> str:
    return str(np.atleast_1d(np.asarray(columns.get("gpu", device), dtype=str))[0])


def _hardware(columns: Mapping[str, Any], device: str) -> Hardware:
    found = hardware(_kind(columns, device))
    assert found is not None  # `applies` has checked this
    return found
