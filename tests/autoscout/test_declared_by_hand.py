"""What a job tells its space, and what a person declares in it: attributes of its devices, knobs by kind of device,
every refusal as a sentence."""

from pathlib import Path
from typing import Any

import msgspec
from asking import refusal

from autoscout.job.device_records import records
from autoscout.space import attributes, declared, explain
from autoscout.space.graph import Space
from autoscout.space.knob import Catalog, Knob, KnobEntry
from kb.records import (
    Cluster,
    Job,
    Model,
    Node,
    Objective,
    OwnKnob,
    OwnRule,
    SpaceLimits,
    Traffic,
)


def knob(name: str, *values: Any, **more: Any) -> Knob:
    return Knob(name=name, kind="sparse", layer="l", values=values, meaning="m", sets="s", **more)


def job(*nodes: Node, **more: Any) -> Job:
    model = Model(layers=2, hidden=8, heads=2, vocab=10, kv_heads=1)
    given = {"name": "j", "target": "megatron", "objective": Objective(minimize="step_time_s"), "model": model}
    return Job(**{**given, **more}, cluster=Cluster(nodes=list(nodes)))


# ---- what a job tells -------------------------------------------------------------------------------------------


def test_devices_of_one_kind_in_several_nodes_are_one_number():
    same = job(Node("a100-40g", 4), Node("a100-40g", 2))
    assert attributes.device_counts(same) == {"a100_40g": 6}
    # All of them are used: four, the first node's, are no choice.
    assert attributes.attributes_of(same)["degrees"] == (1, 2, 3, 6)
    two = job(Node("a100", 4), Node("l4", 5))
    assert attributes.attributes_of(two)["degrees"] == (1, 2, 3, 4, 5, 9)
    _, knobs = attributes.device_knobs(job(Node("a100", 4), Node("a100", 2), Node("l4", 5)))
    assert [(k.values, k.meaning) for k in knobs] == [
        ([0, 4, 6], "number of the cluster's 6 a100 devices to use"),
        ([0, 5], "number of the cluster's 5 l4 devices to use"),
    ]


def test_compute_capabilities_are_nvidias():
    """developer.nvidia.com/cuda-gpus"""
    listed = {
        7.0: ["v100", "v100-16g"], 7.5: ["t4", "rtx-8000"],
        8.0: ["a100", "a100-40g", "a100-pcie", "a100-pcie-40g", "a30", "a800"],
        8.6: ["a40", "a10", "a10g", "rtx-a5000", "rtx-a6000", "rtx3090"],
        8.9: ["l4", "l20", "l40", "l40s", "rtx4090", "rtx-5000-ada", "rtx-6000-ada"],
        9.0: ["h100", "h100-nvl", "h100-pcie", "h20", "h20-3e", "h200", "h200-nvl", "h800", "gh200"],
        10.0: ["b200", "gb200"], 10.3: ["b300", "gb300"],
        12.0: ["rtx5080", "rtx5090", "rtx-pro-6000"], 12.1: ["gb10"],
    }  # fmt: skip
    found = {name: record.capability for name, record in records().items() if record.vendor == "nvidia"}
    assert {name: capability for capability, names in listed.items() for name in names} == found
    for names, weakest in ((("h100", "a40"), 8.6), (("b300",), 10.3), (("a100", "nobodys"), 0.0)):
        assert attributes._capability(job(*(Node(name, 1, 1.0) for name in names))) == weakest
    assert attributes.memory_gib(Node("nobodys", 1)) == 0.0


def served(gib: float, inputs: Any = 100, outputs: Any = 28, device: str = "a100", **model: Any) -> dict[str, Any]:
    of = job(Node(device, 4, gib), task="serve", target="vllm",
             traffic=Traffic(rate=1.0, input_len=inputs, output_len=outputs))  # fmt: skip
    return attributes.attributes_of(msgspec.structs.replace(of, model=msgspec.structs.replace(of.model, **model)))


def test_blocks_and_caches_of_serving():
    assert [served(8.0, 100, outputs)["model_len"] for outputs in (28, 29)] == [128, 256]
    assert served(8.0, 100, [10, 40])["output_mean"] == 25.0
    # 2 × 1024 layers × 1 head × 128 × 2 bytes × 128 tokens: 64 MiB a request; from half of that to half of 16 GiB.
    wide: Any = {"layers": 1024, "hidden": 256, "heads": 2}
    assert served(16.0, **wide)["kv_mib"] == 64.0
    assert served(16.0, **wide)["kv_steps"] == tuple(2**i for i in range(5, 14))
    assert served(16.0, 100, 29, **wide)["kv_steps"] == tuple(2**i for i in range(6, 14))
    assert served(15.9, dtype="fp32", **wide)["kv_steps"] == tuple(2**i for i in range(6, 13))
    assert served(4096.0)["kv_steps"][-1] == 2**19
    # As many engines as fit a node of GPUs; CPU ranks share their node.
    of_three = job(Node("a100", 5), task="serve", target="vllm", traffic=Traffic(rate=1.0, input_len=1, output_len=1))
    assert attributes.attributes_of(of_three)["engine_counts"] == (1, 2, 3, 4, 5)
    of_cpus = msgspec.structs.replace(of_three, cluster=Cluster(nodes=[Node("cpu", 5)]))
    assert attributes.attributes_of(of_cpus)["engine_counts"] == (1, 5)


# ---- what a person declares ---------------------------------------------------------------------------------------


def test_knobs_by_kind_of_device():
    two = (Node("a100-40g", 2), Node("l4", 2), Node("l4", 1))
    own = OwnKnob(name="mbs", values=[1, 2], by_kind=True)
    assert declared.kinds_of(job(*two), own) == {"a100-40g": "mbs_a100_40g", "l4": "mbs_l4"}
    assert declared.kinds_of(job(*two), OwnKnob(name="mbs", values=[1, 2])) == {}
    assert declared.kinds_of(job(*two[1:]), own) == {}

    def hosted(*nodes: Node, target: str = "command", hosts: str = "slurm") -> Job:
        made = job(*nodes, target=target)
        return msgspec.structs.replace(made, cluster=msgspec.structs.replace(made.cluster, hosts=hosts))

    def entries(of: Job, **more: Any) -> list[KnobEntry]:
        return declared._entries(of, OwnKnob(**{"name": "mbs", "values": [1, 2], "by_kind": True, **more}))

    found = entries(hosted(*two), when="tp > 1 or x")
    assert [(k.name, k.when, k.meaning, k.kind, k.sets, k.priced) for k in found] == [
        ("mbs_a100_40g", "a100_40g > 0 and (tp > 1 or x)", "mbs, on a100-40g", "dense", "{mbs}", False),
        ("mbs_l4", "l4 > 0 and (tp > 1 or x)", "mbs, on l4", "dense", "{mbs}", False),
    ]
    assert [k.when for k in entries(hosted(*two))] == ["a100_40g > 0", "l4 > 0"]
    said = (
        "space.knob: knob 'mbs': by_kind needs target = 'command', cluster.hosts (a host file, 'slurm' or 'ray'), and "
        "numbers or names that the command gets by a placeholder, a flag or a variable",
        2,
    )
    assert refusal(entries, hosted(*two, target="megatron")) == said
    assert refusal(entries, hosted(*two, hosts="")) == said
    for more in ({"values": [False, True]}, {"sets": "json:a.b"}, {"sets": "yaml:a"}, {"sets": "toml:a"}):
        assert refusal(entries, hosted(*two), **more) == said
    for more in ({"values": "divisors(gpus)"}, {"values": ["a", "b"]}, {"sets": "--mbs"}, {"sets": "env:MBS"}):
        assert len(entries(hosted(*two), **more)) == 2
    [one] = entries(hosted(two[0]), values=["a", "b"], meaning="", sets="--mbs")
    assert (one.name, one.kind, one.meaning, one.sets) == ("mbs", "sparse", "--mbs", "--mbs")
    kinds = {"sparse": ([False, True], ["x"]), "dense": ([1, 2], [0.5], "divisors(4)")}
    for kind, domains in kinds.items():
        for values in domains:
            assert declared._entry(OwnKnob(name="k", values=values)).kind == kind  # type: ignore[arg-type]
    assert declared._entry(OwnKnob(name="k", values=[1, 2], kind="sparse")).kind == "sparse"


def test_what_the_job_itself_declares(tmp_path: Path):
    def with_(catalog: tuple[str, ...] = (), **space: Any) -> Job:
        files = []
        for i, text in enumerate(catalog):
            files.append(str(tmp_path / f"{i}.toml"))
            Path(files[-1]).write_text(text)
        return job(Node("a100", 4), target="command", space=SpaceLimits(catalog=files, **space))

    x = OwnKnob(name="x", values=[1, 2], sets="--x", default=2)
    own = with_(knob=[x], rule=[OwnRule(holds="x > 0"), OwnRule(holds="x < 9", reason="{x} is no", id="R")],
                derived={"y": "x + 1"})  # fmt: skip
    catalog = declared._in_job(own)
    assert [(r.id, r.reason, r.source) for r in catalog.rule] == [
        ("own-1", "x > 0 does not hold", "the job"), ("R", "{x} is no", "the job"),
    ]  # fmt: skip
    assert declared.own_knobs(own) == {"x": ("--x", 2)}
    assert declared.own_knobs(with_(knob=[x, OwnKnob(name="z", values=[1], replace=True)])) == {"x": ("--x", 2)}
    whole = declared.extended(own, Catalog(target="command"), lambda knob: "")
    assert ([k.name for k in whole.knob], [r.id for r in whole.rule], whole.derived) == (
        ["x"], ["own-1", "R"], {"y": "x + 1"},
    )  # fmt: skip

    def said(of: Job, catalog: Catalog | None = None, refuses: Any = lambda knob: "") -> str:
        sentence, code = refusal(declared.extended, of, catalog or Catalog(target="command"), refuses)
        assert code == 2
        return sentence.replace(str(tmp_path), "T")

    assert said(own, refuses=lambda knob: f"no {knob.name}") == "space.knob: knob 'x': no x"
    assert said(with_()) == "the job: no knob is declared; add [[space.knob]] with a name and values"
    empty = 'target = "t"'
    assert said(with_((empty, empty))) == (
        "T/0.toml, T/1.toml: no knob is declared; add [[space.knob]] with a name and values"
    )
    known = declared._in_job(own)
    assert said(own, known).startswith("space: knob 'x' exists already; set replace = true")
    # Who redeclares a knob of the target need not be allowed to add one.
    again = with_(knob=[OwnKnob(name="x", values=[1, 2, 4], replace=True)])
    assert declared.extended(again, known, lambda knob: "no").knob[0].values == [1, 2, 4]
    missing = "space: knob 'x' has replace = true, but there is no knob of this name to replace; known"
    assert said(again).startswith(missing)
    assert (
        said(with_(knob=[x], derived={"layers": "3"}))
        == "space: derived.layers: the name is already used; choose a different name"
    )
    assert (
        said(with_(derived={"y": "3"}), known) == "space: derived.y: the name is already used; choose a different name"
    )
    assert said(with_(knob=[OwnKnob(name="layers", values=[1])])) == (
        "space: knob 'layers': the job already uses this name; choose a different one"
    )
    assert said(with_(knob=[OwnKnob(name="y", values=[1])]), known).endswith(
        "already uses this name; choose a different one"
    )
    assert said(with_(knob=[x], rule=[OwnRule(holds="xx > 1")])).startswith(
        "space: rule 'own-1': holds: 'xx' is unknown"
    )
    file = '[[knob]]\nname = "q"\nkind = "dense"\nlayer = "l"\nvalues = [1]\nmeaning = ""\nsets = "--q"\n'
    assert said(with_((file,))).startswith('T/0.toml: set either extends = "command", to add knobs to that target')
    assert said(with_((f'extends = "a"\ntarget = "b"\n{file}',))).startswith("T/0.toml: set either extends")
    assert said(with_((f'extends = "vllm"\n{file}',))) == (
        "T/0.toml: extends = 'vllm', but the job's target is 'command'; correct one of the two"
    )
    of_vllm = msgspec.structs.replace(with_((f'target = "t"\n{file}',)), target="vllm")
    assert said(of_vllm) == 'T/0.toml: the file declares its own target, so the job needs target = "command"'
    extends = with_((f'extends = "command"\n{file}',))
    assert said(extends, refuses=lambda knob: "because") == "T/0.toml: knob 'q': because"
    assert declared.extended(extends, Catalog(target="command"), lambda knob: "").target == "command"
    assert declared.own_knobs(extends) == {"q": ("--q", None)}


def test_a_knob_that_is_left_out_says_why():
    space = Space([knob("a", 1, 2)], [], {})
    space.closed = {"q": "q is off here: why"}
    assert refusal(explain.parse, space, ["q=1"]) == ("q is off here: why", 2)
    asks = knob("a", 1, 2, asks=(3,))
    why = "it changes numerical results or needs a package"
    assert explain._not_among(asks, 3) == (
        f"a 3 is not allowed by default, because {why}; to allow it, set [space] allow = ['a']"
    )
    assert explain._not_among(msgspec.structs.replace(asks, asks_for="it is slow"), 3).startswith(
        "a 3 is not allowed by default, because it is slow; "
    )
    assert explain._not_among(asks, 4) == "a 4 is not among 1, 2"
    words = {"true": True, "On": True, "YES": True, "false": False, "off": False, "no": False, "maybe": "maybe"}
    switch = knob("s", False, True)
    assert {word: explain._value(switch, word) for word in words} == words
    share = knob("share", 0.5, 1)
    assert [explain._value(share, text) for text in ("0.5", "1", "x")] == [0.5, 1.0, "x"]
