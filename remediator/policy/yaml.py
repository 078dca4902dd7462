"""YAML text to trees (`remediator.policy.tree`) that know the place of each key and value.

`ruamel.yaml` scans and parses; the tree is built here from its events, because
only so can depth, aliases and size be bounded while reading (a thousand brackets
overflow its own recursive composer), duplicate keys be named with both lines, and
each scalar be judged by whether it was quoted.

Two readers must not see two policies: `kubectl` reads YAML 1.1, this program 1.2.
What they see differently (`off`, `1:30`, `010`, `<<`) is refused, with the way to
write it so that both agree. Null is refused too: no key of a policy means
anything by it, and a forgotten value is what it mostly is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from remediator.policy.problems import MAX_EXCERPT, Location, PolicyError, Problem, format_path
from remediator.policy.scalars import (
    ambiguity,
    resolve_plain,
    rewrite,
    rewrite_fraction,
    syntax_hint,
)
from remediator.policy.tree import Document, Node, Place, make_problem


MAX_DEPTH: Final = 32
"""The deepest policy has 8 levels."""
MAX_NODES: Final = 50_000
"""Keys and values of one file, each alias counted as what it stands for."""


def read_documents(text: str, *, file: str) -> list[Document]:
    """Read every document of a file.

    Documents with problems of meaning (a duplicate key, an ambiguous scalar) are
    returned with them, so that all can be reported at once.

    Raises:
        PolicyError: not YAML, or over the bounds of depth and size.
    """
    reader = _Reader(text, file)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            reader.take(event)
    except MarkedYAMLError as error:
        raise PolicyError([reader.syntax_problem(error)]) from error
    except YAMLError as error:
        raise PolicyError([reader.character_problem(error)]) from error
    return reader.documents


_TAG_STR: Final = "tag:yaml.org,2002:str"
_HALF: Final = re.compile("[\ud800-\udfff]")
_HALF_SAID: Final = (
    "this text holds half a character (a \\u escape of JSON), which cannot be written anywhere",
    "write the character itself, or \\U and its eight digits",
)


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open."""

    node: Node
    location: Location
    anchor: str | None
    flow: bool
    pending: tuple[str, Place] | None = None
    """The key whose value comes next."""
    skipping: bool = False
    """The key was refused: its value is read and left out."""


@dataclass(slots=True)
class _Reader:
    """Builds documents from events. One method an event, in the order they come."""

    text: str
    file: str
    documents: list[Document] = field(default_factory=list)
    lines: list[str] = field(init=False)
    stack: list[_Frame] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)
    root: Node | None = None
    total: int = 0
    problems: list[Problem] = field(default_factory=list)
    blamed: set[Location] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.lines = re.split(r"\r\n|\n|\r|\x85|\u2028|\u2029", self.text.removeprefix("\ufeff"))

    def take(self, event: Any) -> None:
        """Take the next event."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def start_document(self, event: DocumentStartEvent) -> None:
        self.root, self.anchors, self.problems, self.blamed = None, {}, [], set()
        if event.version is not None and tuple(event.version) != (1, 2):
            self.add(_place(event), (), "this file is read as YAML 1.2", "remove the %YAML line")

    def end_document(self, _event: DocumentEndEvent) -> None:
        if self.root is None:
            return
        self.documents.append(
            Document(self.file, self.lines, self.root, tuple(self.problems), frozenset(self.blamed))
        )

    def scalar(self, event: ScalarEvent) -> None:
        place = _place(event)
        if _HALF.search(str(event.value)):
            self.join_halves(event, place)
        frame = self.stack[-1] if self.stack else None
        if frame and isinstance(frame.node.children, dict) and frame.pending is None:
            self.key(frame, event, place)
            return
        location = self.location()
        self.charge(1, place)
        self.tag(event, place, location)
        value = self.resolve(event, place, location)
        self.attach(Node(place, place, value), event.anchor)

    def join_halves(self, event: ScalarEvent, place: Place) -> None:
        r"""JSON writes characters beyond U+FFFF as two escapes (`\ud83d\ude00`)."""
        try:
            event.value = str(event.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.add(place, self.location(), *_HALF_SAID)
            event.value = _HALF.sub("?", str(event.value))

    def key(self, frame: _Frame, event: ScalarEvent, place: Place) -> None:
        name = str(event.value)
        children = frame.node.children
        frame.pending, frame.skipping = (name, place), False
        at = (*frame.location, name)
        if _plain(event) and not isinstance(resolve_plain(name), str):
            self.add(place, at, f"the key {name or '(empty)'} is not text", "write it in quotes")
        elif _plain(event) and (found := ambiguity(name)):
            self.add(place, at, f"the key {name} is {found}", rewrite(name))
        elif isinstance(children, dict) and name in children:
            first = children[name].key.line
            self.add(place, at, f"the key {name} is given twice", f"see line {first}; keep one")
            frame.skipping = True

    def alias(self, event: AliasEvent) -> None:
        place = _place(event)
        target = self.anchors.get(event.anchor)
        if target is None:
            self.stop(place, f"the alias *{event.anchor} refers to no anchor before it")
        elif self.expects_key():
            self.stop(place, "an alias cannot be a key", "write the key itself")
        else:
            if len(self.stack) + target.height > MAX_DEPTH:
                self.too_deep(place)
            self.charge(target.weight, place)
            copy = Node(place, place, target.value, target.children, target.weight, target.height)
            self.attach(copy, None)

    def start_collection(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        place = _place(event)
        if self.expects_key():
            self.stop(place, "a mapping or list cannot be a key", "keys are text")
        if len(self.stack) >= MAX_DEPTH:
            self.too_deep(place)
        location = self.location()
        self.charge(1, place)
        self.tag(event, place, location)
        node = Node(place, place)
        node.children = {} if isinstance(event, MappingStartEvent) else []
        self.stack.append(_Frame(node, location, event.anchor, bool(event.flow_style)))

    def end_collection(self, _event: MappingEndEvent | SequenceEndEvent) -> None:
        frame = self.stack.pop()
        self.attach(frame.node, frame.anchor)

    def attach(self, node: Node, anchor: str | None) -> None:
        """Put a complete value where it belongs."""
        if anchor:
            self.anchors[anchor] = node
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        if isinstance(parent.children, dict) and frame.pending is not None:
            name, key = frame.pending
            node.key = key
            if not frame.skipping:
                parent.children[name] = node
            frame.pending = None
        elif isinstance(parent.children, list):
            parent.children.append(node)
        parent.weight += node.weight
        parent.height = max(parent.height, node.height + 1)

    def charge(self, values: int, place: Place) -> None:
        """Count what the file will be when its aliases are written out."""
        self.total += values
        if self.total > MAX_NODES:
            self.stop(
                place,
                f"more than {MAX_NODES} values, aliases counted as what they stand for",
                "split the file, and use fewer aliases",
            )

    def location(self) -> Location:
        """The path of the value that comes next."""
        if not self.stack:
            return ()
        frame = self.stack[-1]
        if isinstance(frame.node.children, list):
            return (*frame.location, len(frame.node.children))
        return (*frame.location, frame.pending[0]) if frame.pending else frame.location

    def expects_key(self) -> bool:
        """Tell whether a key must come next."""
        frame = self.stack[-1] if self.stack else None
        return frame is not None and isinstance(frame.node.children, dict) and not frame.pending

    def resolve(self, event: ScalarEvent, place: Place, at: Location) -> str | int | bool | None:
        text = str(event.value)
        if not _plain(event):
            return text
        if found := ambiguity(text):
            self.add(place, at, f"{text} is {found}", rewrite(text))
            return text
        value = resolve_plain(text)
        if value is None:
            self.null(place, at)
        elif isinstance(value, float):
            fix = rewrite_fraction(text, str(at[-1]) if at else "")
            self.add(place, at, f"{text} is a fraction, and no key takes one", fix)
            return text
        return value

    def null(self, place: Place, at: Location) -> None:
        if not at:
            return  # an empty document: judged by the loader
        frame = self.stack[-1]
        if isinstance(at[-1], int):
            self.add(place, at, "this list entry is empty", "give it a value, or remove the dash")
            return
        if frame.pending is not None:
            place = frame.pending[1]
        fix = f"give it a value (`{at[-1]}: {{}}` takes all defaults), or remove the key"
        self.add(place, at, f"{at[-1]} has no value", fix)

    def tag(self, event: Any, place: Place, at: Location) -> None:
        tag = str(event.tag) if event.tag else ""
        if tag and tag not in {"!", _TAG_STR}:
            name = tag.replace("tag:yaml.org,2002:", "!!")
            self.add(place, at, f"the tag {name} is not used here", "remove it")

    def add(self, place: Place, at: Location, message: str, fix: str = "") -> None:
        self.blamed.add(at)
        self.problems.append(
            make_problem(self.file, self.lines, place, message, path=format_path(at), fix=fix)
        )

    def stop(self, place: Place, message: str, fix: str = "") -> None:
        """Give up: what follows cannot be understood, or is too much."""
        self.add(place, (), message, fix)
        raise PolicyError([p for d in self.documents for p in d.problems] + self.problems)

    def too_deep(self, place: Place) -> None:
        self.stop(place, f"nested more than {MAX_DEPTH} levels deep", "a policy has at most 8")

    def syntax_problem(self, error: MarkedYAMLError) -> Problem:
        """Translate the parser's error; its words are kept, hints are added."""
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(0, 0)
        words = str(error.problem or error.context or "cannot be parsed").strip()
        if error.context and error.problem:
            words = f"{words} {error.context}"
        words = words.replace("'\\t'", "tab").replace("'\\x00'", "the end of the file")
        source = self.lines[place.line - 1] if 0 < place.line <= len(self.lines) else ""
        return make_problem(
            self.file,
            self.lines,
            place,
            f"this is not YAML: {words}",
            fix=syntax_hint(words, source, self._opened(error)),
        )

    def _opened(self, error: MarkedYAMLError) -> str:
        """Return the line, before that of the error, whose bracket is not closed; "" if none."""
        begun, at = error.context_mark, error.problem_mark
        within = "flow" in str(error.context) and begun is not None and at is not None
        line = self.lines[begun.line] if within and begun.line < at.line else ""
        return line if len(line) <= MAX_EXCERPT else ""

    def character_problem(self, error: YAMLError) -> Problem:
        """A character that YAML does not allow, such as NUL."""
        position = getattr(error, "position", None)
        if not isinstance(position, int):
            return Problem(file=self.file, message=f"this is not YAML: {error}")
        before = self.text[:position]
        place = Place(before.count("\n") + 1, position - before.rfind("\n"))
        code = self.text[position : position + 1]
        shown = f"U+{ord(code):04X}" if code else "?"
        return make_problem(
            self.file,
            self.lines,
            place,
            f"the character {shown} is not allowed in YAML",
            fix="is this a text file? remove the character",
        )


_HANDLERS: Final[dict[type, Callable[[_Reader, Any], None]]] = {
    DocumentStartEvent: _Reader.start_document,
    DocumentEndEvent: _Reader.end_document,
    ScalarEvent: _Reader.scalar,
    AliasEvent: _Reader.alias,
    MappingStartEvent: _Reader.start_collection,
    SequenceStartEvent: _Reader.start_collection,
    MappingEndEvent: _Reader.end_collection,
    SequenceEndEvent: _Reader.end_collection,
}


def _place(event: Any) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1)


def _plain(event: ScalarEvent) -> bool:
    return not event.style and not event.tag
