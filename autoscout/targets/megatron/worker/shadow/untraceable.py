"""Recognizes failures that fake tensors cause, as opposed to errors of Megatron: reading values, sizes that depend on
values, and operators without a rule for their result's shape."""

import re
import traceback
from typing import Any

_VALUES = "reads values, but a shadow's tensors have none"
_SIZES = "returns a number of elements that depends on values, but a shadow's tensors have none"
_NO_KERNEL = "has no fake kernel, which would give the shape of its result: add one with torch.library.register_fake"
_BY_TYPE = {
    "DynamicOutputShapeException": _SIZES,
    "DataDependentOutputException": _VALUES,
    "GuardOnDataDependentSymNode": _VALUES,
    "UnsupportedOperatorException": _NO_KERNEL,
    "UnsupportedFakeTensorException": "does not work on tensors without storage",
    "UnsupportedMutationAliasingException": "does not work on tensors without storage",
}
_BY_MESSAGE = (
    (re.compile(r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>"), _NO_KERNEL),
    (re.compile(r"(\.numpy\(\)|\.tolist\(\)) is not supported for tensor subclasses"), _VALUES),
)


def of(error: BaseException) -> dict[str, Any] | None:
    """If fake tensors caused an exception, returns a dictionary with the operator that raised the exception, the
    reason, and the line of the model (or of a hook) that called the operator. None for any other exception."""
    chain: list[BaseException] = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for link in chain:
        if message := _message(link):
            where = [f for f in traceback.extract_tb(error.__traceback__) if not _ours(f.filename)]
            at = f"{where[-1].filename.rpartition('site-packages/')[2]}:{where[-1].lineno} {where[-1].name}"
            return {"verdict": "untraceable", "type": type(link).__name__, "message": message, "where": at}
    return None


def _message(error: BaseException) -> str:
    text = str(error)
    if why := _BY_TYPE.get(type(error).__name__):
        return f"{text.splitlines()[0][:300] if text else 'an operator'} {why}"
    found = ((pattern.search(text), why) for pattern, why in _BY_MESSAGE)
    return next((f"{match[1]} {why}" for match, why in found if match), "")


def _ours(file: str) -> bool:
    return "/torch/" in file or "/targets/megatron/worker/" in file or "/targets/command/worker/" in file
