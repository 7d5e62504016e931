"""Classifies an exception when no sign of symptoms.py is in the log: a table of rules, tried from the top.

A row matches the exception's type, its message, the code that raised it (the file of the traceback's last frame), and
whether a step was done by then. The first match gives the class and the reason. An exception from below the framework
(driver, loader, file system, network) is not a fact about a configuration; a refusal is deliberate, is about sizes or
support, and comes before the first step.
"""

import re

import msgspec

from autoscout.running.results import RankError
from autoscout.running.symptoms import FILES, IMPORTS, OUT_OF_MEMORY, SEAM, SHARED_MEMORY, STARTING, Found, Symptom

MESSAGE = "Message"  # pseudo exception type of an error line without an exception


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """An exception. `file`: of the last frame, "" if unknown; `stepped`: a step was done before."""

    type: str
    message: str
    file: str = ""
    stepped: bool = False


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Patterns to search for; "" always matches. `before`: only before the first step."""

    symptom: Symptom
    types: str = ""
    says: str = ""
    files: str = ""
    before: bool = False


_REFUSED = Symptom("invalid", "", "the framework refuses what was asked for")
_SHAPES = Symptom("invalid", "", "the sizes of this configuration do not fit together")
_ON_CHIP = Symptom("invalid", "", "a kernel needs more of the GPU than it has")
_ARGUMENTS = Symptom("invalid", "", "the script does not take these arguments")
_KERNEL = Symptom("error", "", "a kernel failed on the device")
_WAITED = Symptom("timeout", "", "it gave up waiting")
_ENDED = Symptom("killed", "", "it was told to end")
_DELIBERATE = (
    r"^(?:Value|Assertion|NotImplemented|Validation|Compilation|\w*Config(?:uration)?|Usage|Argument)Error$"
    r"|^NotImplemented$"
)
_ECHO = re.compile(
    r"^(?:Actor\w*|RayTask|WorkerCrashed|ChildFailed|EngineDead|Process(?:Raised|Exited))(?:Error|Exception)$"
)
_PACKAGE = (
    r"(?:apex|flash[ _-]?attn|flash[ _-]?attention|transformer[ _-]?engine|triton|nccl|deepspeed|xformers|cud(?:a|nn))"
)
_BELOW = (
    r"torch/(?:cuda|distributed/(?!pipelining|fsdp|tensor|_composable)|utils/cpp_extension|serialization|_inductor/(?:codecache|cpp_builder))|/triton/"
    r"|/(?:ctypes|importlib|multiprocessing|subprocess|socket|shutil|ssl|urllib|http)\b|huggingface_hub|/requests/|safetensors"
)

TABLE = (
    CauseRow(symptom=_ENDED, types=r"^(?:KeyboardInterrupt|SystemExit|SignalException)$"),
    CauseRow(symptom=OUT_OF_MEMORY, types=r"(?:Memory|OutOfMemory)Error$"),
    CauseRow(
        symptom=SEAM,  # raised in our worker, by the call itself: the engine's function is another than it expects
        types=r"^(?:Type|Attribute|Import|ModuleNotFound)Error$",
        says=r"\) (?:missing|got an unexpected|takes|got some positional).* argument|has no attribute"
        r"|cannot import name|No module named '\w+\.",
        files=r"/autoscout/targets/\w+/worker/",
    ),
    CauseRow(
        symptom=IMPORTS, types=r"^(?:ModuleNotFound|Import)Error$|VersionConflict$|(?:Package|Distribution)NotFound"
    ),
    CauseRow(symptom=_ON_CHIP, types=r"^OutOfResources$"),
    CauseRow(
        symptom=_KERNEL,
        says=r"device-side assert|illegal memory access|misaligned address|launch failure|illegal instruction"
        r"|invalid configuration argument|launch timed out|_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
        r"|failed to launch|(?:CUDA|HIP|cu[A-Z]\w+) [Ee]rror(?!.*(?:unsupported|not supported))",
    ),
    CauseRow(symptom=SHARED_MEMORY, types=r"^(?:OSError|RuntimeError)$", says=r"torch_shm_manager|/dev/shm"),
    CauseRow(
        symptom=FILES,
        types=r"^(?:OSError|IOError|EnvironmentError)$",
        says=r"Errno|connect|file|folder|path|identifier|load|https?:",
    ),
    CauseRow(
        symptom=FILES,
        types=r"^(?:EOFError|gaierror)$|^(?:Permission|FileNotFound|FileExists|IsADirectory"
        r"|NotADirectory|BlockingIO|JSONDecode|Unpickling|Safetensor|Safetensors)Error$|(?:HTTP|SSL|Proxy|Connect\w*"
        r"|MaxRetry|RepoNotFound|RepositoryNotFound|GatedRepo|EntryNotFound|H[Ff]\w*|OfflineMode\w*|CalledProcess)"
        r"(?:Error|Exception)$",
    ),
    CauseRow(
        symptom=FILES,
        says=r"(?i:connection (?:error|refused|timed out|aborted)|max retries|internet connection|connect to '?https?:"
        r"|no such file|permission denied|gated repo|\b40[134] client error|unauthorized|repo id|huggingface"
        r"|\bno .{0,30}\b(?:file|folder|checkpoint|dataset|data)s?\b.{0,30}found"
        r"|\b(?:file|folder|directory|path|checkpoint|dataset|tokenizer)s?\b.{0,60}"
        r"(?:not found|missing|not exist|expected format|corrupt))",
    ),
    CauseRow(
        symptom=STARTING,
        says=r"(?i:hostfile|reachable|via ssh|environment variable \S+ expected|gpus?\b.{0,60}\bavailable"
        r"|available .{0,30}gpus?\b)",
        before=True,
    ),
    CauseRow(symptom=_WAITED, types=r"^Timeout(?:Error|Expired)$"),
    CauseRow(
        symptom=IMPORTS,
        says=r"(?i:please (?:re)?install|pip3? install|(?:not|n't) installed|cannot import name|failed to import"
        r"|requires? \S+ ?(?:>=|==)|(?:version|>=) ?\S* (?:is )?(?:required|needed|too old)|(?:compiled|built) without"
        r"|not (?:been )?compiled with|(?:version|built|compiled)\b.{0,60}(?:does not match|mismatch|different))"
        rf"|(?i:\b{_PACKAGE}\b[^.]{{0,40}}\b(?:required|missing|unavailable|not (?:available|found)))",
    ),
    CauseRow(symptom=IMPORTS, says=r"(?i:\b(?:setup|library|extension|binary)\b.{0,20}\bfailed\b)"),
    CauseRow(symptom=_REFUSED, types=f"^{MESSAGE}$", says=r"divisible by|multiple of", before=True),
    CauseRow(symptom=IMPORTS, types=r"^AttributeError$", says=r"module '[\w.]+' has no attribute"),
    CauseRow(symptom=IMPORTS, types=r"^NameError$", files=r"-packages/|/megatron/"),
    CauseRow(
        symptom=_ARGUMENTS, types=r"^TypeError$", says=r"\w(?:Config|Args|Arguments)\b.*unexpected keyword argument"
    ),
    CauseRow(
        symptom=IMPORTS,  # a package calling another one's API of a different version
        types=r"^TypeError$",
        says=r"^(?!\w*(?:Config|Args)\b).*(?:unexpected keyword argument|required positional argument)",
        files=r"^$|-packages/|/megatron/",
    ),
    CauseRow(symptom=_ARGUMENTS, types=r"^(?:Argument|Usage)Error$"),
    CauseRow(symptom=STARTING, types=r"^Dist\w*Error$", before=True),
    CauseRow(
        symptom=_REFUSED,
        types=_DELIBERATE,
        says=r"(?i:divisible|multiple of|must (?:be|match|equal|have|not)|should (?:be|match|not)|no .{0,40}backend"
        r"|not? .{0,40}support|unsupported|only .{0,10}support|supported (?:for|by|with|only|in)|(?:in|not )compatible"
        r"|is not available|not implemented|exceed|(?:greater|less|larger|smaller|more|fewer|higher|lower) than"
        r"|at least|at most|cannot be|can ?not (?:use|be)|require|need(?:s|ed)?\b|or (?:higher|newer|later)"
        r"|too (?:large|small|long|short|many|few)|mismatch|conflict|unknown|no module or parameter"
        r"|not (?:equal|aligned)|validation errors? for|(?:!=|==|<=|>=)|\d ?[<>] ?\S*\d|[<>] ?\w+ \d)",
        before=True,
    ),
    CauseRow(
        symptom=_SHAPES,
        types=r"^(?:RuntimeError|ValueError|IndexError)$",
        says=r"size of tensor|must match|shapes? .*(?:mat1|mat2|cannot be multiplied|invalid)|size mismatch"
        r"|is invalid for input|split_sizes|expected at most|not divisible",
        before=True,
    ),
    CauseRow(
        symptom=_REFUSED,  # a library's own check (TORCH_CHECK)
        types=r"^RuntimeError$",
        says=r"^(?!.*(?:CUDA error|[Dd]river|[Pp]latform|[Ss]ystem|operation not supported))"
        r".*(?i:only supports?|not (?:\w+ )?supported|unsupported|not implemented"
        r"|assertion failed: (?!.*(?:cuda|null)).*(?:==|!=|<=|>=))",
        before=True,
    ),
    CauseRow(symptom=STARTING, types=r"^(?:OS|Runtime|Value|Assertion)Error$", files=_BELOW, before=True),
)
_COMPILED = [(row, re.compile(row.types), re.compile(row.says, re.DOTALL), re.compile(row.files)) for row in TABLE]


def judge(raised: Raised) -> Found | None:
    """The finding of the first row that matches; None if none does."""
    name = raised.type.rsplit(".", 1)[-1]
    if _ECHO.search(name):
        return None
    for row, types, says, files in _COMPILED:
        if row.before and raised.stepped:
            continue
        if types.search(name) and says.search(raised.message) and files.search(raised.file):
            return Found(row.symptom, f"{name}: {' '.join(raised.message.split())}")
    return None


def below(file: str) -> bool:
    """Whether a file lies below the framework: driver, loader, file system, network."""
    return re.search(_BELOW, file) is not None


_PREFIX = re.compile(r"^(?:\s*(?:\[[^\]]*\]:?|\([^)]*\)|(?:ERROR|INFO|WARNING|CRITICAL)\s+[\d\-]+\s+[\d:.]+|\|)\s?)*")
_HOST = re.compile(r"^(?!\S*(?:Error|Exception|Exit|Interrupt|Expired):)[a-z][\w.-]*: +(?=[A-Z])")  # pdsh, mpirun
_COMPLAINT = re.compile(r"(?i:\b(?:error|failed|fatal|critical)\b)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+', re.MULTILINE)
_EXCEPTION = re.compile(
    r"^((?:[A-Za-z_][\w]*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|Expired|Resources|NotFound|Conflict))(?::\s*(.*)|\((.+)\))?$"
)
# pydantic names the field and the problem on the next two lines.
_FIELD = re.compile(r"\d+ validation errors? for \S+(?:: \S+)?")
_VALUE = re.compile(r" \[type=\w+, input_value=(.*), input_type=\w+\]$")
_USAGE = re.compile(r"^[\w./ -]+\.?(?:py)?: error: ((?:argument|unrecognized|the following|ambiguous|invalid).*)$")


def exceptions(text: str, stepped: bool) -> list[Raised]:
    """The exceptions in a log, in order, each with the file that raised it."""
    found: list[Raised] = []
    told: list[Raised] = []  # error lines without an exception
    file = ""
    for line in text.splitlines():
        bare = _HOST.sub("", _PREFIX.sub("", line)).strip()
        if frame := _FRAME.match(bare):
            file = frame[1]
        elif usage := _USAGE.match(bare):
            found.append(Raised(type="UsageError", message=usage[1]))
        elif said := _EXCEPTION.match(bare):
            found.append(Raised(type=said[1], message=said[2] or said[3] or "", file=file, stepped=stepped))
            file = ""
        elif found and bare and _FIELD.fullmatch(found[-1].message):
            wrong = _VALUE.sub(r", not \1", bare)
            found[-1] = msgspec.structs.replace(found[-1], message=f"{found[-1].message}: {wrong}")
        elif found and not found[-1].message and bare:
            found[-1] = msgspec.structs.replace(found[-1], message=bare)
        elif _COMPLAINT.search(bare):
            told.append(Raised(type=MESSAGE, message=bare, stepped=stepped))
    return [*found, *told]


def first(text: str, stepped: bool) -> Found | None:
    """The finding for the first exception in a log that matches a row."""
    return next(filter(None, map(judge, exceptions(text, stepped))), None)


def raised(error: RankError, stepped: bool) -> Raised:
    """The exception that a rank recorded."""
    frames = _FRAME.findall(error.traceback)
    return Raised(type=error.type, message=error.message, file=frames[-1] if frames else "", stepped=stepped)
