"""What AutoScout sets of a trainer's line is there in every recorded release; others are read from their sources."""

import sys
from pathlib import Path

import pytest

from autoscout.space.knob import reached
from autoscout.targets import seams
from autoscout.targets.command import settings_taken
from autoscout.targets.command.arguments import started
from autoscout.targets.command.preset import preset
from autoscout.targets.jobs import load_job
from autoscout.targets.package_sources import declared
from kb.records import AutoscoutError
from tests.tools import record_seams

PACKAGES = ("transformers", "trl", "accelerate", "deepspeed")
LINE = "python train.py --output_dir out --per_device_train_batch_size 4 --max_steps 9"
SOURCE = """from dataclasses import dataclass

@dataclass
class TrainingArguments:
    {fields}
"""


def missing(package: str, release: str) -> list[str]:
    """Settings that no class takes, in this release of a package and the newest of the others."""
    known: dict[str, str | None] = {}
    for each in PACKAGES:
        record = settings_taken.recorded(each)
        known |= record.of(release if each == package else record.releases[-1]) or {}
    lacks = [text for text, names in record_seams.taken().items() if all(known[name] is None for name in names)]
    of_rl = package == "trl" and not reached(release, "0.29")  # whose iterations nothing times
    return [text for text in lacks if not (of_rl and text.startswith("grpo: "))]


@pytest.mark.parametrize(
    ("package", "release"), [(p, release) for p in PACKAGES for release in settings_taken.recorded(p).releases]
)
def test_every_recorded_release_takes_every_setting(package: str, release: str) -> None:
    assert missing(package, release) == []


def test_the_records_are_of_all_that_is_set() -> None:
    asked = {name for names in record_seams.taken().values() for name in names} | {*record_seams.patched()}
    recorded = {name for package in PACKAGES for name in settings_taken.recorded(package).names}
    assert asked == recorded, "tests/tools/record_seams.py records them anew"


def test_the_newest_transformers_has_what_shadows_replace() -> None:
    known = settings_taken.recorded("transformers")
    newest = known.of(known.releases[-1]) or {}
    assert [name for name in record_seams.patched() if newest[name] is None] == []


def job(folder: Path, more: str = ""):
    (folder / "train.py").write_text("")
    text = f'name = "t"\ntask = "finetune"\ntarget = "command"\n[traffic]\nglobal_batch = 8\n[objective]\nminimize = "step_time_s"\n[launch]\nscript = "hf-trainer"\npath = "{folder}"\ncurrent = "{LINE}"\npython = "{sys.executable}"\n[cluster]\nnodes = [{{ device = "cpu", count = 1 }}]\n{more}'  # fmt: skip  # noqa: E501
    (folder / "job.toml").write_text(text)
    return load_job(folder / "job.toml")


def fit(folder: Path, version: str, more: str = "", **others: str) -> seams.SeamFit | None:
    ours = preset("hf-trainer").knob
    return settings_taken.fit(job(folder, more), ours, {"transformers": version, **others}, started)


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, fields: str) -> None:
    """A release of transformers that imports only where there is a GPU."""
    package = folder / "site" / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('no GPU')\n")
    (package / "training_args.py").write_text(SOURCE.format(fields=fields))
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"))


def fields(without: str = "") -> str:
    names = {name.rpartition(".")[2] for names in record_seams.taken().values() for name in names}
    return "\n    ".join(f"{name}: int = 0" for name in sorted(names) if name.isidentifier() and name != without)


def test_a_known_release_is_not_asked(tmp_path: Path) -> None:
    found = fit(tmp_path, "5.23.0")
    assert found is not None
    assert (found.known, found.unfit, found.engine) == (True, [], "transformers 5.23.0")


def test_a_release_that_nobody_knows_is_read_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, fields())
    found = fit(tmp_path, "99.0.0rc1")
    assert found is not None
    assert (found.known, found.unfit) == (False, [])
    assert found.verdict.startswith("AutoScout has no record of transformers 99.0.0rc1; ")


def test_a_setting_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, fields(without="save_strategy"))
    found = fit(tmp_path, "99.0.0")
    assert found is not None
    assert found.verdict == "some names that AutoScout calls or sets do not fit transformers 99.0.0: no --save_strategy"


def test_a_person_s_own_flag_is_not_the_trainer_s(tmp_path: Path) -> None:
    own = '[[space.knob]]\nname = "rank"\nvalues = [1, 2]\nsets = "--my_rank"\n'
    found = fit(tmp_path, "5.23.0", own)
    assert found is not None
    assert found.unfit == []


def test_of_two_engines_in_one_interpreter_the_line_s_own_counts(tmp_path: Path) -> None:
    found = fit(tmp_path, "5.23.0", deepspeed="99.0.0", trl="99.0.0", accelerate="99.0.0")
    assert found is not None
    assert (found.engine, found.known) == ("transformers 5.23.0", True)


def test_a_checkout_with_changes_of_its_own_is_read_as_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is none that was released, so its code counts, wherever it is installed from."""
    installed(tmp_path, monkeypatch, fields(without="max_steps"))
    for version in ("5.23.0.dev0+g1234", "5.24.0rc1"):
        found = fit(tmp_path, version)
        assert found is not None
        assert found.unfit == ["no --max_steps"]


def test_a_package_that_cannot_be_found_says_nothing(tmp_path: Path) -> None:
    assert fit(tmp_path, "99.0.0") is None


def test_what_sources_declare(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "__init__.py").write_text(
        "if True:\n    from .core import shapes as forms, Base\nBATCH = 'train_batch'\n"
    )
    (tmp_path / "core" / "__init__.py").write_text("from .base import Base\n")
    (tmp_path / "core" / "base.py").write_text("class Base:\n    size: int = Field(1, alias='the_size')\n")
    (tmp_path / "core" / "shapes.py").write_text(
        "from pkg import Base\nclass Square(Base):\n    def area(self, a, /, b=1, *c, d, e=2, **f): ...\n"
        "def parser():\n    p = P()\n    p.add_argument('-n', '--nodes')\n"
    )
    asked = {
        "pkg.core.shapes.Square": "",
        "pkg.forms.Square.size": "",  # inherited from a class that another module imports
        "pkg.core.shapes.Square.the_size": "",
        "pkg.core.shapes.Square.area": "self, a, /, b=…, *c, d, e=…, **f",
        "pkg.core.shapes.Square.depth": None,
        "pkg.core.shapes.parser.--nodes": "",
        "pkg.core.shapes.parser.--ranks": None,
        "pkg.train_batch": "",
        "pkg.core": "",
        "pkg.nothing": None,
        "other.thing": None,
    }
    assert {name: declared({"pkg": tmp_path}, name) for name in asked} == asked


def test_modules_that_import_from_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("from .a import x\n")
    (tmp_path / "a.py").write_text("from . import x\n")
    assert declared({"pkg": tmp_path}, "pkg.x") is None


def test_a_source_that_is_no_python_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("type X[T = 1:\n")
    with pytest.raises(AutoscoutError, match=r"__init__.py: cannot be read as Python"):
        declared({"pkg": tmp_path}, "pkg.x")
