"""Runs one rank of a user's own, unchanged training script without a GPU and without other ranks: on fake tensors and
torch's fake process group, until its optimizer has made two steps.

    python script_shadow.py FOLDER        answers FOLDER/question-N.json in FOLDER/answer-N.json, each in a fork

A question has the keys `words` (of the command, python or torchrun), `environment`, `cwd`, `rank`, `world`, `a_node`
(ranks per node) and `gpu`. An answer is {"verdict": "starts" | "refused" | "untraceable", …}."""

import contextlib
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "running" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[2] / "megatron" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[2] / "megatron" / "worker" / "shadow"))
sys.path.insert(0, str(Path(__file__).parent))

import leash
import rank_questions

_STEPS = 2  # number of traced optimizer steps: two, because the first one creates the optimizer's state


class Enough(BaseException):
    """Raised to end the script after enough optimizer steps."""


class Steps:
    """Tracks calls of modules and steps of the optimizer, in order."""

    def __init__(self, watch: Any) -> None:
        self.watch, self.done, self.first, self.found = watch, 0, None, []
        self.parameters = 0
        self.summary: dict[str, Any] = {}
        self._highest = 0

    def called(self, *_: Any) -> None:
        import unreal_torch

        if self.watch.phase == "build":
            unreal_torch.hugging_face()
            self.watch.phase = "forward"

    def before(self, optimizer: Any, *_: Any) -> None:
        self.first = self.first or optimizer
        self._highest = self.watch.peak
        self.watch.peak = self.watch.now
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._kind(parameter, "weight", "weights")
                if parameter.grad is not None:
                    self._kind(parameter.grad, "gradient", "gradients")
        self.watch.phase = "step"

    def after(self, optimizer: Any, *_: Any) -> None:
        import trace_summary

        for state in optimizer.state.values():
            for name, value in state.items():
                self._kind(value, name, "optimizer")
        self.watch.phase = "forward"
        if optimizer is not self.first:
            return
        self.found.append(
            {"forward_backward": self._highest, "optimizer": self.watch.peak, "left": self.watch.now},
        )
        self.done += 1
        self.watch.peak = self.watch.now
        if self.done == _STEPS - 1:
            self.watch.record()
        elif self.done == _STEPS:
            self.parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
            self.summary = trace_summary.of(self.watch)
            raise Enough

    def _kind(self, tensor: Any, tag: str, phase: str) -> None:
        import torch
        from torch.utils._python_dispatch import is_traceable_wrapper_subclass

        if not isinstance(tensor, torch.Tensor):
            return
        if is_traceable_wrapper_subclass(tensor):
            for name in tensor.__tensor_flatten__()[0]:
                self._kind(getattr(tensor, name), tag, phase)
        else:
            self.watch.rename(tensor, tag, phase)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    import torch
    import unreal_torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    began = time.process_time()
    watch = unreal_torch.ScriptWatch()
    steps = Steps(watch)
    register_module_forward_pre_hook(steps.called)
    register_optimizer_step_pre_hook(steps.before)
    register_optimizer_step_post_hook(steps.after)
    try:
        unreal_torch.install(watch, question["rank"], question["world"], question["gpu"])
        run = _script(question)
        with (
            _leaving(),
            FakeTensorMode(allow_non_fake_inputs=True),
            watch,
            unreal_torch.OnCpu(),
        ):
            run()
        raise RuntimeError(f"the script ended after {steps.done} steps of an optimizer; a shadow needs {_STEPS}")
    except Enough:
        pass
    except BaseException as error:
        return _refused(error, watch.phase, time.process_time() - began)
    usage = {"cpu_s": round(time.process_time() - began, 3), "torch": torch.__version__}
    found = {"steps": steps.found, "parameters": steps.parameters, "built": 0, "micro_batches_traced": 1}
    return {"verdict": "starts", **found, **steps.summary, **usage}


@contextlib.contextmanager
def _leaving() -> Any:
    """Ignores exits with code 0, including calls of os._exit (scripts use it to avoid waiting for other ranks)."""

    def left(code: int) -> None:
        raise SystemExit(code)

    leave, os._exit = os._exit, left  # type: ignore[assignment]
    try:
        yield
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        os._exit = leave


def _script(question: dict[str, Any]) -> Any:
    """Returns a function that runs the command's script in this process as if it were the main program."""
    words = question["words"]
    name, rest = Path(words[0]).name, words[1:]
    module = False
    if name == "torchrun" or rest[:2] == ["-m", "torch.distributed.run"]:
        from torch.distributed.run import parse_args

        known = parse_args(rest if name == "torchrun" else rest[2:])
        module, program, arguments = known.module, known.training_script, known.training_script_args
    else:
        rest = rest[1:] if rest[:1] == ["-u"] else rest
        module = rest[0] == "-m"
        program, *arguments = rest[1:] if module else rest
    sys.argv = [program, *arguments]
    if module:
        sys.path.insert(0, os.getcwd())
        return lambda: runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(program).absolute().parent))
    return lambda: runpy.run_path(program, run_name="__main__")


def _refused(error: BaseException, phase: str, seconds: float) -> dict[str, Any]:
    import untraceable

    found = rank_questions.refusal(error, phase)
    if (reason := untraceable.of(error)) is not None:
        found |= reason
    elif "FakeTensor" in str(error) or "deepspeed" in sys.modules:  # DeepSpeed's engine needs real devices
        found |= {"verdict": "untraceable", "type": type(error).__name__, "message": str(error)[:2000]}
    return {**found, "cpu_s": round(seconds, 3)}


def main(folder: Path) -> int:
    first = rank_questions.of(folder)[0]
    rank, world = str(first["rank"]), str(first["world"])
    local = str(first["rank"] % first["a_node"])
    os.environ.update(RANK=rank, LOCAL_RANK=local, WORLD_SIZE=world, LOCAL_WORLD_SIZE=str(first["a_node"]))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29999", GROUP_RANK="0", TORCHDYNAMO_DISABLE="1")
    os.chdir(first["cwd"])
    import torch
    import torch.distributed.run  # noqa: F401

    return rank_questions.answer_all(folder, answer)


if __name__ == "__main__":
    leash.die_with(os.getppid())
    sys.exit(main(Path(sys.argv[1])))
