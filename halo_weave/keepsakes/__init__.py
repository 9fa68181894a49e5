"""What the AI keeps on purpose: notes, structured memory, and the tools that reach them."""

from halo_weave.keepsakes.calls import ToolCall, ToolDetector
from halo_weave.keepsakes.commands import Command
from halo_weave.keepsakes.notes import Notes
from halo_weave.keepsakes.results import ToolResult
from halo_weave.keepsakes.sandbox import JqSandbox
from halo_weave.keepsakes.structured_memory import (
    Branch,
    HeadingMatch,
    KeptChunk,
    Remembered,
    SnapshotSearch,
    StructuredMemory,
)
from halo_weave.keepsakes.tools import Toolbox

__all__ = [
    "Branch",
    "Command",
    "HeadingMatch",
    "JqSandbox",
    "KeptChunk",
    "Notes",
    "Remembered",
    "SnapshotSearch",
    "StructuredMemory",
    "ToolCall",
    "ToolDetector",
    "ToolResult",
    "Toolbox",
]
