"""Every error a user can meet. The message is a sentence that says what to do.

HaloWeaveError
├── BadInput               what was given cannot be used as it is
│   ├── UnknownChunk       no such chunk where one is needed
│   ├── UnknownWindow      no such window
│   ├── UnknownMemory      no such entry in the structured memory
│   ├── UnknownPreset      no preset of this name
│   ├── UnknownPerson      nobody of this name
│   ├── NotYours           it belongs to someone else, or to the owner of the server
│   ├── DocumentRefused    a file that cannot be attached
│   ├── UnknownGeneration  no such vectors: the memory was cleared, or embedded again
│   ├── WindowBusy         the window is being written to
│   │   └── LeaseLost      another server has taken the window over
│   ├── NotesChanged       the notes are not those that were read
│   ├── EmbedderOff        something needs an embedder, and there is none
│   └── BadSetting         a setting out of its range, or unknown
├── ModelError
│   ├── ModelLoading       the model is on its way
│   ├── ModelNotFound      no file where the model should be
│   ├── ModelUnusable      not a GGUF, truncated, an embedding model, an unsupported architecture
│   └── LibraryUnusable    llama.cpp is missing, or its layout is not the one we know
├── EngineError            the model stopped in the middle of its work
│   └── ServerFailed       it runs on a server, which cannot be reached or answers wrongly
│       └── AnotherModel   the server runs another model now
├── StoreError
│   ├── StoreBusy          another process held the memory for too long
│   ├── StoreUnreachable   the database does not answer
│   ├── StoreCorrupt       the file is damaged, or is not a memory
│   ├── StoreFull          no space left, read-only, or no more ids
│   └── StoreTooNew        written by a newer version
└── ImportRefused          a file to import does not have a form we know
"""


class HaloWeaveError(Exception):
    """An error that the user can be told in one sentence."""


class BadInput(HaloWeaveError, ValueError):
    pass


class UnknownChunk(BadInput):
    pass


class UnknownWindow(BadInput):
    pass


class UnknownMemory(BadInput):
    pass


class UnknownPreset(BadInput):
    pass


class UnknownPerson(BadInput):
    pass


class NotYours(BadInput):
    pass


class DocumentRefused(BadInput):
    pass


class UnknownGeneration(BadInput):
    pass


class WindowBusy(BadInput):
    pass


class LeaseLost(WindowBusy):
    pass


class NotesChanged(BadInput):
    pass


class EmbedderOff(BadInput):
    pass


class BadSetting(BadInput):
    pass


class ModelError(HaloWeaveError):
    pass


class ModelLoading(ModelError):
    pass


class ModelNotFound(ModelError):
    pass


class ModelUnusable(ModelError):
    pass


class LibraryUnusable(ModelError):
    pass


class EngineError(HaloWeaveError):
    pass


class ServerFailed(EngineError):
    pass


class AnotherModel(ServerFailed):
    pass


class StoreError(HaloWeaveError):
    pass


class StoreBusy(StoreError):
    pass


class StoreUnreachable(StoreError):
    pass


class StoreCorrupt(StoreError):
    pass


class StoreFull(StoreError):
    pass


class StoreTooNew(StoreError):
    pass


class ImportRefused(HaloWeaveError):
    pass
