"""The screen "compare": configurations, sessions or jobs side by side, sources of the gain, the Pareto front."""

import json
from typing import Any

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal

from tui.draw import comparing
from tui.draw.gates import gated
from tui.screens.asking import AskedVerbs
from tui.screens.pane import Pane
from tui.session.fronts import front
from tui.text import number
from tui.widgets.panel import Panel

_VIEWS = ("configurations", "sessions", "jobs", "front")
_OF_RL = ("configurations", "iteration", "sessions", "jobs", "front")
_OF_A_GATE = ("gate", "sessions", "jobs")


class ComparePane(Pane):
    help = {
        "side by side": "the best ones and the default, or those marked by m; ~ is predicted, ± 95 %",
        "which knob the gain comes from": "steps from the reference to the best configuration, one knob at a time",
        "which knobs matter": "the effect of each knob alone, from pairs of runs that differ only in it",
    }

    def compose(self) -> ComposeResult:
        yield Panel("side by side", self._top, "side-by-side")
        with Horizontal(id="compare-bottom"):
            yield Panel("which knob the gain comes from", self._ablation, "ablation")
            yield Panel("which knobs matter", self._effects, "effects")

    def ready(self) -> None:
        self.view = "configurations"
        self._why: dict[str, Any] | None = None
        self._why_of: tuple[int, int] = (0, 0)
        self._why_problem = ""
        self._rows: list[dict[str, Any]] | None = None
        self._verbs = AskedVerbs()

    def on_unmount(self) -> None:
        self._verbs.end()

    @property
    def _views(self) -> tuple[str, ...]:
        if self.state.gated:
            return _OF_A_GATE
        return _OF_RL if self.state.job is not None and self.state.job.task == "rl" else _VIEWS

    def repaint(self) -> None:
        if self.view not in self._views:
            self.view = self._views[0]
        of = (id(self.state), len(self.state.runs) - len(self.state.running))
        explained = self.state.job is not None and not self.state.gated
        if explained and of != self._why_of and (self.state.ended or of[1] >= 2 * self._why_of[1]):
            self._why_of = of
            self._explain()
        panel = self.query_one("#side-by-side", Panel)
        panel.border_title = "   ".join(f"[{v}]" if v == self.view else v for v in self._views).replace("[", r"\[")
        panel.border_subtitle = "c next"
        super().repaint()

    def cycle(self) -> None:
        self.view = self._views[(self._views.index(self.view) + 1) % len(self._views)]
        if self.view in ("sessions", "jobs") and self._rows is None:
            self._read_sessions()
        self.set_class(self.view == "front", "-front")
        self.repaint()

    def _top(self, width: int, height: int) -> Text:
        if self.view == "gate" and self.state.gated:
            return gated(self.state.gated, self.ascii)
        if self.view == "front":
            return comparing.front(self.state, front(self.state), width, height, self.ascii)
        if self.view == "configurations":
            return comparing.side_by_side(self.state, self.session.marked, width)
        if self.view == "iteration":
            return comparing.iteration(self.state, self.ascii)
        if self._rows is None:
            return Text("reading …", style="dim")
        return comparing.of_rows(sessions(self._rows) if self.view == "sessions" else jobs(self._rows), width)

    def _ablation(self, width: int, height: int) -> Text:
        if self.state.gated:
            return Text("a gate runs one configuration per side", style="dim")
        if self._why is None:
            return Text(self._why_problem or "computing …", style="dim")
        text = Text(no_wrap=True, overflow="ellipsis")
        confirmed = self.state.confirmed
        if confirmed is not None and confirmed.winner == self.state.default and len(self._why["steps"]) > 1:
            text.append("nothing is measurably faster than the default; steps to the fastest one:\n", style="dim")
        return text.append(comparing.ablation(self._why, width, self.ascii, self.state.seen))

    def _effects(self, width: int, height: int) -> Text:
        text = comparing.effects(self.state, width, height // 2, self.ascii)
        if self._why is not None and height > 5:
            text.append("\nshare of the predicted variance over the whole space\n", style="dim")
            text.append(comparing.effects_of(self._why, width, height - text.plain.count("\n") - 1, self.ascii))
        return text

    @work(exclusive=True, group="why")
    async def _explain(self) -> None:
        """Runs `autoscout why` in a subprocess, since it fits models, which is slow."""
        journal = self.session.follower.path
        code, out, problem = await self._verb("why", str(journal), "--json")
        self._why = json.loads(out) if code == 0 else None
        self._why_problem = problem
        super().repaint()

    @work(exclusive=True, group="sessions")
    async def _read_sessions(self) -> None:
        code, out, problem = await self._verb("sessions", "--json", "--kb", str(self.session.kb))
        self._rows = json.loads(out) if code == 0 else []
        if code:
            self.app.notify(problem, severity="warning", markup=False)
        super().repaint()

    async def _verb(self, *arguments: str) -> tuple[int, str, str]:
        code, out, errors = await self._verbs.outcome(await self._verbs.start(*arguments))
        return code, out, errors.strip()


def sessions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings and results of each session, as (label → value). `rows`: from `autoscout sessions --json`."""
    return [
        {
            "session": r["session"],
            "job": r["job"],
            "cluster": r["cluster"],
            "strategy": r["strategy"],
            "seed": r["seed"],
            "fidelity": r["fidelity"],
            "warm start": r["warm_start"],
            "state": r["reason"] or r["state"],
            "experiments": r["experiments"],
            "failed": r["failed"],
            "minutes": number(r["cost_s"] / 60),
            r["metric"]: _number(r["value"]),
            "gain": _gain(r),
            "best": r["best"] or "–",
        }
        for r in rows
    ]


def jobs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each job, cluster and metric: totals over its sessions, and the result of the best session."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault((r["job"], r["cluster"], r["metric"]), []).append(r)
    found = []
    for (job, cluster, metric), members in groups.items():
        measured = [r for r in members if r["value"] is not None]
        sign = 1 if members[0]["goal"] == "minimize" else -1
        best = min(measured, key=lambda r: sign * r["value"], default=None)
        found.append(
            {
                "job": job,
                "cluster": cluster,
                "metric": metric,
                "sessions": len(members),
                "experiments": sum(r["experiments"] for r in members),
                "failed": sum(r["failed"] for r in members),
                "best value": _number(best["value"]) if best else "–",
                "gain": _gain(best) if best else "–",
                "best": best["best"] if best else "–",
            }
        )
    return found


def _number(value: float | None) -> str:
    return "–" if value is None else number(value)


def _gain(row: dict[str, Any]) -> str:
    if row["gain"] is None:
        return "–"
    if row["low"] is None or row["high"] is None:
        return f"{row['gain']:.2f}×"
    return f"{row['gain']:.2f}× {row['low']:.2f}–{row['high']:.2f}"
