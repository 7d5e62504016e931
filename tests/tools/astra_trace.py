"""The training step in COSMIC's logs, as the ordered operators and collectives of each pipeline stage.

Documented in symbolic_tensor_graph (branch archgym @ 761995b: sharding_spreadsheets fullset and fully_sharded_fullset):
every operand has a required layout, and collectives convert it from its producer's layout. An element counts as one
byte; an operator takes the bytes of operands and result / local bandwidth; one micro batch runs through all stages.
Axes: B batch, S tokens, D channels, N channels of a head, H heads, F channels of the feed-forward layer; /d: split over
data-parallel ranks, /t: tensor-parallel, /s: sequence-parallel; +: partial sums over an axis."""

from typing import NamedTuple

AXES = "dts"
_ROW, _SUM, _TOKENS = "B/d S/s D/t", "B/d S/s D", "B/d S/s N H/t"
_WHOLE, _SCORES = "B/d S N H/t", "B/d S S/s H/t"
# name = operand: layout | operand: layout | result
_ATTENTION = f"""
q = x: {_SUM} | wq: D N H/t | {_TOKENS}
k = x: {_SUM} | wk: D N H/t | {_TOKENS}
v = x: {_SUM} | wv: D N H/t | {_TOKENS}
qk = q: {_WHOLE} | k: {_TOKENS} | {_SCORES}
qkv = qk: {_SCORES} | v: {_TOKENS} | {_WHOLE} +s
flat = qkv: {_TOKENS} | : {_ROW} | {_ROW}
sum = flat: {_ROW} | x: {_ROW} | {_ROW}
normal = sum: {_ROW} | | {_ROW}
d_sum = d_normal: {_ROW} | | {_ROW}
d_qkv = d_sum: {_ROW} | : {_TOKENS} | {_TOKENS}
d_qk = d_qkv: {_WHOLE} | v: {_TOKENS} | {_SCORES}
d_v = d_qkv: {_WHOLE} | qk: {_SCORES} | {_TOKENS}
d_q = d_qk: {_SCORES} | k: {_TOKENS} | {_WHOLE} +s
d_k = d_qk: {_SCORES} | q: {_WHOLE} | {_TOKENS}
d_wq = d_q: {_TOKENS} | x: {_SUM} | D N H/t +d +s
d_wk = d_k: {_TOKENS} | x: {_SUM} | D N H/t +d +s
d_wv = d_v: {_TOKENS} | x: {_SUM} | D N H/t +d +s
d_x1 = d_q: {_TOKENS} | wq: D N H/t | {_SUM} +t
d_x2 = d_k: {_TOKENS} | wk: D N H/t | {_SUM} +t
d_x3 = d_v: {_TOKENS} | wv: D N H/t | {_SUM} +t
d_x12 = d_x1: {_ROW} | d_x2: {_ROW} | {_ROW}
d_x34 = d_x3: {_ROW} | d_sum: {_ROW} | {_ROW}
d_x = d_x12: {_ROW} | d_x34: {_ROW} | {_ROW}
"""
_FEED = f"""
wide = x: {_SUM} | w1: D F/t | B/d S/s F/t
narrow = wide: B/d S/s F/t | w2: F/t D | {_SUM} +t
sum = narrow: {_ROW} | x: {_ROW} | {_ROW}
normal = sum: {_ROW} | | {_ROW}
d_normal = d_out: {_ROW}
d_sum = d_normal: {_ROW} | | {_ROW}
d_w2 = d_sum: {_SUM} | wide: B/d S/s F/t | F/t D +d +s
d_wide = d_sum: {_SUM} | w2: F/t D | B/d S/s F/t
d_w1 = d_wide: B/d S/s F/t | x: {_SUM} | D F/t +d +s
d_x1 = d_wide: B/d S/s F/t | w1: D F/t | {_SUM} +t
d_x = d_sum: {_ROW} | d_x1: {_ROW} | {_ROW}
"""
_EMBEDDING = """
y = x: B/d S/s I | w: I O/t | B/d S/s O/t
d_w = d_y: B/d S/s O/t | x: B/d S/s I | I O/t +d +s
d_x = d_y: B/d S/s O/t | w: I O/t | B/d S/s I +t
"""
_WEIGHTS = {"wq": "D N H/t", "wk": "D N H/t", "wv": "D N H/t", "w1": "D F/t", "w2": "F/t D", "w": "I O/t"}
_SHARDED = {"wq": "D/d N/s H/t", "wk": "D/d N/s H/t", "wv": "D/d N/s H/t"}
_SHARDED |= {"w1": "D/ds F/t", "w2": "F/t D/ds", "w": "I/ds O/t"}
GATHER, SCATTER, REDUCE = "gather", "scatter", "reduce"


class Node(NamedTuple):
    """`what`: compute, send, receive, or a collective's kind with its `axis`; `size`: bytes; `after`: numbers of the
    nodes of the same stage that it depends on; `peer`: (stage, number) of a send's receive and vice versa."""

    what: str
    size: int
    axis: str
    after: list[int]
    peer: tuple[int, int] | None = None


class _Line(NamedTuple):
    """`operands`: (whole name, required layout); the result is a partial sum over the axes `partial`."""

    name: str
    stage: int
    operands: list[tuple[str, str]]
    layout: str
    partial: str
    computes: bool


class Trace:
    """The trace of a row of the logs. `stages`: each stage's nodes by number; `degree`: ranks per axis (p: stages).
    Rank numbers vary fastest along data parallelism, then tensor parallelism, sequence parallelism and stages."""

    def __init__(self, row: dict[str, str]) -> None:
        n = {name.removeprefix("w_"): int(float(value)) for name, value in row.items() if name[:2] == "w_" and value}
        self.degree = {"d": n["dp"], "t": n["tp"], "s": n["sp"], "p": n["pp"]}
        self._extent = {"B": n["batch"], "S": n["seq"], "D": n["dmodel"], "F": n["dff"], "I": n["din"], "O": n["dout"]}
        self._extent |= {"H": n["head"], "N": n["dmodel"] / n["head"]}
        self._weights = _SHARDED if n["weight_sharded"] else _WEIGHTS
        self._given = {**self._weights, "x": "B/d S/s I/t"}  # inputs that no operator produces
        self._lines = {line.name: line for line in self._read(n["num_stacks"])}
        stages = 1 + max(line.stage for line in self._lines.values())
        self._drafts: list[list[tuple[str, int, str, list[int | str]]]] = [[] for _ in range(stages)]
        self._yields: dict[str, int] = {}
        for line in self._lines.values():
            self._draft(line)
        self._peers: dict[tuple[int, int], tuple[int, int]] = {}
        received = self._send()
        self.stages = [
            [
                Node(what, size, axis, self._resolved(after, stage, received), self._peers.get((stage, number)))
                for number, (what, size, axis, after) in enumerate(drafts)
            ]
            for stage, drafts in enumerate(self._drafts)
        ]

    def _read(self, layers: int) -> list[_Line]:
        """The lines by node number: embeddings, layers, weight updates. Stages are numbered in this order."""
        stage_of = [(k + 1) % self.degree["p"] for k in range(layers + 1)]
        blocks = [("in.", 0, _EMBEDDING), ("out.", stage_of[layers], _EMBEDDING)]
        for k in range(layers):
            blocks += [(f"{k}a.", stage_of[k], _ATTENTION), (f"{k}f.", stage_of[k], _FEED)]
        places: dict[int, int] = {}
        lines, updates = [], []
        for block, stage, text in blocks:
            place = places.setdefault(stage, len(places))
            for line in text.strip().split("\n"):
                name, _, rest = line.partition(" = ")
                parts = [part.strip() for part in rest.split("|")]
                given = [tuple(p.split(": ")) for p in parts[:2] if ":" in p]
                operands = [(self._whole(block, a.strip(), layers), layout) for a, layout in given]
                layout, *partial = (parts[2] if len(parts) > 2 else given[0][1]).split(" +")
                lines.append(_Line(block + name, place, operands, layout, "".join(partial), len(parts) > 2))
            for name, layout in self._weights.items():
                if f" {name}:" in text:
                    operands = [("", layout), (f"{block}d_{name}", layout)]
                    updates.append(_Line(f"{block}{name} new", place, operands, layout, "", True))
        return lines + updates

    @staticmethod
    def _whole(block: str, name: str, layers: int) -> str:
        """An operand's name in the whole model; a block's inputs from its neighbours have the neighbours' names."""
        if not name:
            return ""
        if block == "in.":
            return "0a.d_x" if name == "d_y" else block + name
        if block == "out.":
            return {"x": f"{layers - 1}f.normal", "d_y": "out.y"}.get(name, block + name)
        k, kind = int(block[:-2]), block[-2]
        before = f"{k}a.normal" if kind == "f" else f"{k - 1}f.normal" if k else "in.y"
        behind = f"{k}f.d_x" if kind == "a" else f"{k + 1}a.d_x" if k + 1 < layers else "out.d_x"
        return {"x": before, "d_out": behind, "d_normal" if kind == "a" else "": behind}.get(name, block + name)

    def _draft(self, line: _Line) -> None:
        """Adds the nodes of a line: the operator gets its number before the collectives that precede it."""
        drafts = self._drafts[line.stage]
        after: list[int | str] = []
        if line.computes:
            layouts = [layout for _, layout in line.operands] + [line.layout]
            self._yields[line.name] = len(drafts)
            drafts.append(("compute", int(sum(map(self._bytes, layouts))), "", after))
        for name, wanted in line.operands:
            before: int | str = name
            for kind, axis, size in self._between(name, wanted):
                drafts.append((kind, size, axis, [before] if before else []))
                before = len(drafts) - 1
            if line.computes and before != "":
                after.append(before)
            elif not line.computes and isinstance(before, int):
                self._yields[line.name] = before

    def _between(self, name: str, wanted: str) -> list[tuple[str, str, int]]:
        """The collectives that convert an operand from its producer's layout to the required one."""
        if not name:
            return []
        line = self._lines.get(name)
        layout, partial = (line.layout, line.partial) if line else (self._given[name.rpartition(".")[2]], "")
        there, then = self._shared(layout), self._shared(wanted)
        size = int(self._bytes(layout))
        found = []
        for axis in AXES:
            if self.degree[axis] > 1 and axis in partial:
                found.append((SCATTER if axis in then else REDUCE, axis, size))
            elif axis in there and axis not in then:
                found.append((GATHER, axis, size))
        return found

    def _shared(self, layout: str) -> set[str]:
        """The axes over which a layout is split; of two axes that split one dimension, only the first counts."""
        seen = [[a for a in extent[2:] if self.degree[a] > 1] for extent in layout.split()]
        return {axes[0] for axes in seen if axes}

    def _bytes(self, layout: str) -> float:
        size = 1.0
        for extent in layout.split():
            size *= self._extent[extent[0]]
            for axis in extent[2:]:
                size /= self.degree[axis]
        return size

    def _send(self) -> dict[tuple[str, int], int]:
        """Adds a send and a receive for each operand from another stage, numbered last. Returns the receive's number by
        (name, stage)."""
        wanted = dict.fromkeys(
            (line.stage, name)
            for line in self._lines.values()
            for name, _ in line.operands
            if name in self._lines and self._lines[name].stage != line.stage
        )
        received = {}
        for stage, name in sorted(wanted, key=lambda both: both[0]):
            source = self._lines[name]
            size = int(self._bytes(source.layout))
            send, receive = (source.stage, len(self._drafts[source.stage])), (stage, len(self._drafts[stage]))
            self._drafts[source.stage].append(("send", size, "", [name]))
            self._drafts[stage].append(("receive", size, "", []))
            self._peers |= {send: receive, receive: send}
            received[name, stage] = receive[1]
        return received

    def _resolved(self, after: list[int | str], stage: int, received: dict[tuple[str, int], int]) -> list[int]:
        numbers = []
        for name in after:
            while isinstance(name, str) and name in self._lines:
                line = self._lines[name]
                passes = not line.computes and name not in self._yields and line.stage == stage
                name = line.operands[0][0] if passes else received.get((name, stage), self._yields.get(name, ""))
            numbers += [name] if isinstance(name, int) else []
        return numbers
