"""The AI's own memory: notes, structured memory, and the tools that reach them."""

from halo_weave.memory.calls import ToolCall, ToolDetector
from halo_weave.memory.notes import Notes, Written
from halo_weave.memory.results import ToolResult
from halo_weave.memory.sandbox import JqSandbox
from halo_weave.memory.tools import Toolbox
from halo_weave.memory.tree import Branch, Hit, Kept, Match, MemoryTree, Remembered, Search

__all__ = [
    "Branch",
    "Hit",
    "JqSandbox",
    "Kept",
    "Match",
    "MemoryTree",
    "Notes",
    "Remembered",
    "Search",
    "ToolCall",
    "ToolDetector",
    "ToolResult",
    "Toolbox",
    "Written",
]
