"""Identity + tokens -> pages: a tree with one page an edge. Sees ints, never arrays.

A node stands for a published length of a token prefix: all page boundaries on the way, and lengths that end inside a page
(leaves). Children are found by their exact tokens, never by a hash alone. A node holds one reference on its page.

Life of an entry: `look_up` (touches nothing) -> `pin` -> seed or extend -> `unpin`. While anything below or at a node is
pinned it cannot be evicted, because only unpinned leaves are. The clock is logical: one tick a use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from ..contract.request import Identity
from .pages import PagePool

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """A published prefix: the parent's tokens plus `tokens` (at most a page of them)."""

    tokens: Tokens
    page: int | None
    parent: Node | None
    length: int
    children: dict[Tokens, Node] = field(default_factory=dict)
    pins: int = 0
    used: int = 0

    def path(self) -> list[Node]:
        """The nodes from the first page down to this one, without the root."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.page is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def pages(self) -> list[int]:
        """The pages that cover positions [0, length)."""
        return [node.page for node in self.path() if node.page is not None]


class PrefixCache(Protocol):
    """What a turn needs of a prefix cache; `PagedPrefixCache` and its dumb twin `NullPrefixCache` provide it."""

    def look_up(self, identity: Identity, tokens: Sequence[int]) -> Node | None:
        """The longest published prefix of `tokens`, or None. Mutates nothing; valid until the next publish or evict."""

    def pin(self, node: Node) -> None:
        """Protect `node` and its path from eviction, and mark the path as used now."""

    def unpin(self, node: Node) -> None:
        """Undo one `pin`."""

    def publish(self, identity: Identity, parent: Node | None, tokens: Tokens, page: int) -> Node:
        """Publish `tokens` behind `parent` (None: at the start), held in `page`; returns the node, marked as used.

        Where that prefix is already published, the first publisher's page stays and `page` is not retained.
        """

    def evict(self, pages: int) -> int:
        """Free up to `pages` pages by dropping unpinned leaves, least recently used first; returns how many it freed."""

    def evictable(self) -> int:
        """How many pages `evict` could free at most."""

    def clear(self) -> None:
        """Drop every entry. Nothing may be pinned."""

    def nodes(self) -> Iterator[tuple[Identity, Node]]:
        """Every published prefix, each after its parent."""


class PagedPrefixCache(PrefixCache):
    """The real one, over a `PagePool`."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._roots: dict[Identity, Node] = {}
        self._clock = 0

    @override
    def look_up(self, identity: Identity, tokens: Sequence[int]) -> Node | None:
        node = self._roots.get(identity)
        size = self._pool.page_size
        while node is not None:
            rest = tuple(tokens[node.length : node.length + size])
            keys = (rest[:n] for n in range(len(rest), 0, -1))
            longest = next((node.children[key] for key in keys if key in node.children), None)
            if longest is None:
                return node if node.page is not None else None
            node = longest
        return None

    @override
    def pin(self, node: Node) -> None:
        node.pins += 1
        self._touch(node)

    @override
    def unpin(self, node: Node) -> None:
        assert node.pins > 0, "unpin without pin"
        node.pins -= 1

    @override
    def publish(self, identity: Identity, parent: Node | None, tokens: Tokens, page: int) -> Node:
        assert 0 < len(tokens) <= self._pool.page_size
        above = self._roots.setdefault(identity, Node((), None, None, 0)) if parent is None else parent
        node = above.children.get(tokens)
        if node is None:
            node = above.children[tokens] = Node(tokens, page, above, above.length + len(tokens))
            self._pool.retain(page)
        self._touch(node)
        return node

    @override
    def evict(self, pages: int) -> int:
        """As `PrefixCache.evict`; among equally old leaves the deepest goes first."""
        freed = 0
        while freed < pages:
            leaves = [(i, n) for i, n in self.nodes() if not n.children and not n.pins]
            if not leaves:
                break
            identity, victim = min(leaves, key=lambda entry: (entry[1].used, -entry[1].length))
            freed += self._drop(identity, victim)
        return freed

    @override
    def evictable(self) -> int:
        nodes = [node for _, node in self.nodes()]
        safe = {id(step) for node in nodes if node.pins for step in node.path()}
        return sum(id(n) not in safe and n.page is not None and self._pool.holders(n.page) == 1 for n in nodes)

    @override
    def clear(self) -> None:
        for _, node in list(self.nodes()):
            assert not node.pins, "clear while a turn is running"
            if node.page is not None:
                self._pool.release(node.page)
        self._roots.clear()

    @override
    def nodes(self) -> Iterator[tuple[Identity, Node]]:
        for identity, root in self._roots.items():
            stack = list(root.children.values())
            while stack:
                node = stack.pop()
                stack.extend(node.children.values())
                yield identity, node

    def held_pages(self) -> list[int]:
        """A page once for each node that holds it."""
        return [node.page for _, node in self.nodes() if node.page is not None]

    def check_invariants(self) -> None:
        """Assert the tree's own laws: full inner pages, children behind their parent, pins not negative."""
        for _, node in self.nodes():
            assert node.parent is not None
            assert node.length == node.parent.length + len(node.tokens)
            assert node.parent.children[node.tokens] is node
            assert node.pins >= 0
            assert not node.children or len(node.tokens) == self._pool.page_size, "an inner page is not full"

    def _touch(self, node: Node) -> None:
        """Mark the whole path as used now. Only leaves are ever compared, so an inner node inherits when it becomes one."""
        self._clock += 1
        node.used = self._clock

    def _drop(self, identity: Identity, node: Node) -> int:
        assert node.parent is not None
        assert node.page is not None
        del node.parent.children[node.tokens]
        node.parent.used = max(node.parent.used, node.used)
        if node.parent.page is None and not node.parent.children:
            del self._roots[identity]
        return int(self._pool.release(node.page))


class NullPrefixCache(PrefixCache):
    """The dumb twin: publishes nothing, finds nothing. For a decoder that cannot be paged, and as an oracle in tests."""

    @override
    def look_up(self, identity: Identity, tokens: Sequence[int]) -> Node | None:
        """Never a hit."""
        return None

    @override
    def pin(self, node: Node) -> None:
        """There is no node to pin."""

    @override
    def unpin(self, node: Node) -> None:
        """There is no node to unpin."""

    @override
    def publish(self, identity: Identity, parent: Node | None, tokens: Tokens, page: int) -> Node:
        """A node that nobody will find."""
        return Node(tokens, page, parent, (parent.length if parent else 0) + len(tokens))

    @override
    def evict(self, pages: int) -> int:
        """Frees nothing."""
        return 0

    @override
    def evictable(self) -> int:
        """No page."""
        return 0

    @override
    def clear(self) -> None:
        """Nothing to drop."""

    @override
    def nodes(self) -> Iterator[tuple[Identity, Node]]:
        """Nothing."""
        return iter(())
