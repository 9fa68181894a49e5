"""The application: conversations (windows, turns, prompts, recall, pruning, tools) and what the server and the command line call.

`weave.Weave` is the entry: its attributes (`turns`, `windows`, `chunks`, `memory` and others) have the methods by subject.
`runtime.Runtime` is what they share: engines, store, search, locks and the open windows. `turn.TurnRun` runs one turn.
"""

from halo_weave.chat.weave import Weave

__all__ = ["Weave"]
