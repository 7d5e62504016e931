"""The screen "arms": the bandit's arms, the tournament of orderings, the tree of measured configurations."""

from functools import partial

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from tui.draw import panels
from tui.draw.arms_panel import arms
from tui.draw.two_by_two import coordinates
from tui.screens.pane import Pane
from tui.session.tree import RunNode, grow
from tui.text import number
from tui.widgets.beside import InBackground
from tui.widgets.panel import Panel

_MOST = 200  # largest number of a node's children that are shown


class ArmsPane(Pane):
    help = {
        "arms": "who proposes experiments, how often each won, and the gain for its cost",
        "dense coordinates": "the number that is being tuned, its direction and its step",
        "tournament of tree orderings": "orders in which the tree may branch on knobs; the best ones stay",
        "structures": "configurations tried, as a tree; enter opens a branch",
    }

    def compose(self) -> ComposeResult:
        a = self.ascii
        with Horizontal(id="arms-top"):
            with Vertical(id="arms-side"):
                yield Panel("arms", lambda w, h: arms(self.state, w, h, a), "all-arms")
                yield Panel("dense coordinates", lambda w, h: coordinates(self.state, w, a), "coordinates")
            yield Panel("tournament of tree orderings", lambda w, h: panels.standings(self.state, w, a), "standings")
        yield Tree[RunNode]("tree", id="tree")

    def ready(self) -> None:
        self._grown: tuple[int, int] = (0, -1)
        self._background: InBackground[RunNode] = InBackground(self, self._plant)

    def repaint(self) -> None:
        super().repaint()
        now = (id(self.state), len(self.state.curve))
        if now != self._grown:
            self._grown = now
            if self.long:
                self._background.ask(partial(grow, self.state))
            else:
                self._plant(grow(self.state))

    def on_tree_node_expanded(self, opened: Tree.NodeExpanded[RunNode]) -> None:
        if opened.node.data is not None and not opened.node.children:
            _add(opened.node, opened.node.data, set(), self.ascii)

    def _plant(self, root: RunNode) -> None:
        tree: Tree[RunNode] = self.query_one(Tree)
        opened = {n.data.path for n in _all(tree.root) if n.data and n.is_expanded}
        tree.clear()
        tree.root.data = root
        tree.root.set_label(_label(root, self.ascii))
        _add(tree.root, root, opened, self.ascii)
        tree.root.expand()


def _add(parent: TreeNode[RunNode], node: RunNode, opened: set[tuple[str, ...]], ascii_only: bool) -> None:
    """Adds a node's children to the tree; their own children are added if they are open, or once they are expanded."""
    for child in node.children[:_MOST]:
        if child.children:
            branch = parent.add(_label(child, ascii_only), data=child, expand=child.path in opened)
            if child.path in opened:
                _add(branch, child, opened, ascii_only)
        else:
            parent.add_leaf(_label(child, ascii_only), data=child)
    if len(node.children) > _MOST:
        parent.add_leaf(Text(f"{len(node.children) - _MOST:,} more, with fewer visits", style="dim"))


def _all(node: TreeNode[RunNode]) -> list[TreeNode[RunNode]]:
    return [node, *(found for child in node.children for found in _all(child))]


def _label(node: RunNode, ascii_only: bool) -> Text:
    text = Text(node.path[-1] if node.path else "all structures", style="bold" if node.holds_best else "")
    mean = "–" if node.mean is None else number(node.mean)
    best = "–" if node.best is None else number(node.best)
    text.append(f"   visits {node.visits}  best {best}  mean {mean}", style="dim")
    if node.failed:
        text.append(f"  {'x' if ascii_only else '✗'} {node.failed} failed", style="dim")
    if node.holds_best:
        text.append("  <- best" if ascii_only else "  ← best")
    return text
