"""What the AI keeps on purpose: notes, structured memory, and the tools that reach them."""

from halo_weave.memory.calls import ToolCall, ToolDetector
from halo_weave.memory.commands import Command
from halo_weave.memory.notes import Notes, NotesChange
from halo_weave.memory.results import ToolResult
from halo_weave.memory.sandbox import JqSandbox
from halo_weave.memory.tools import Toolbox
from halo_weave.memory.tree import Branch, HeadingMatch, KeptChunk, MemoryTree, Remembered, SnapshotSearch

__all__ = [
    "Branch",
    "Command",
    "HeadingMatch",
    "JqSandbox",
    "KeptChunk",
    "MemoryTree",
    "Notes",
    "NotesChange",
    "Remembered",
    "SnapshotSearch",
    "ToolCall",
    "ToolDetector",
    "ToolResult",
    "Toolbox",
]
