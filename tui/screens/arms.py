"""Arms and trees: the bandit's arms, the tournament of orderings, the tree of what was tried."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from tui.draw import panels
from tui.draw.arms_panel import arms
from tui.draw.two_by_two import coordinates
from tui.screens.pane import Pane
from tui.session.tree import Node, grow
from tui.text import number
from tui.widgets.panel import Panel


class ArmsPane(Pane):
    help = "enter opens and closes a branch of the tree; visits, best and mean are of the configurations below it"

    def compose(self) -> ComposeResult:
        a = self.ascii
        with Horizontal(id="arms-top"):
            with Vertical(id="arms-side"):
                yield Panel("arms", lambda w, h: arms(self.state, w, h, a), "all-arms")
                yield Panel("dense coordinates", lambda w, h: coordinates(self.state, w, a), "coordinates")
            yield Panel("tournament of tree orderings", lambda w, h: panels.standings(self.state, w, a), "standings")
        yield Tree[Node]("tree", id="tree")

    def on_mount(self) -> None:
        self._grown = -1

    def repaint(self) -> None:
        super().repaint()
        if len(self.state.curve) != self._grown:
            self._grown = len(self.state.curve)
            self._plant()

    def _plant(self) -> None:
        tree: Tree[Node] = self.query_one(Tree)
        opened = {n.data.path for n in _all(tree.root) if n.data and n.is_expanded}
        root = grow(self.state)
        tree.clear()
        tree.root.data = root
        tree.root.set_label(_label(root, self.ascii))
        _add(tree.root, root, opened, self.ascii)
        tree.root.expand()


def _add(parent: TreeNode[Node], node: Node, opened: set[tuple[str, ...]], ascii_only: bool) -> None:
    for child in node.children:
        if child.children:
            branch = parent.add(_label(child, ascii_only), data=child, expand=child.path in opened)
            _add(branch, child, opened, ascii_only)
        else:
            parent.add_leaf(_label(child, ascii_only), data=child)


def _all(node: TreeNode[Node]) -> list[TreeNode[Node]]:
    return [node, *(found for child in node.children for found in _all(child))]


def _label(node: Node, ascii_only: bool) -> Text:
    text = Text(node.path[-1] if node.path else "all structures", style="bold" if node.holds_best else "")
    mean = "–" if node.mean is None else number(node.mean)
    best = "–" if node.best is None else number(node.best)
    text.append(f"   visits {node.visits}  best {best}  mean {mean}", style="dim")
    if node.failed:
        text.append(f"  {'x' if ascii_only else '✗'} {node.failed} failed", style="dim")
    if node.holds_best:
        text.append("  <- best" if ascii_only else "  ← best")
    return text
