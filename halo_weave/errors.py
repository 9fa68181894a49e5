"""All errors that are shown to users. The message is a sentence that says what to do.

HaloWeaveError
├── BadInput               the input is invalid
│   ├── UnknownChunk       no such chunk where one is needed
│   ├── UnknownWindow      no such window
│   ├── UnknownMemory      no such entry in the structured memory
│   ├── UnknownPreset      no preset of this name
│   ├── UnknownPerson      no person with this name
│   ├── NotYours           only its owner, or the owner of the server, may do this
│   ├── DocumentRefused    a file that cannot be attached
│   ├── UnknownGeneration  these vectors do not exist any more: the memory was cleared, or embedded again
│   ├── WindowBusy         another turn is running in the window
│   │   └── LeaseLost      another server has taken the window over
│   ├── NotesChanged       the notes have changed since they were read
│   ├── EmbedderOff        this needs an embedder, and there is none
│   └── BadSetting         a setting out of its range, or unknown
├── ModelError
│   ├── ModelLoading       the model is being downloaded or loaded
│   ├── ModelNotFound      no file where the model should be
│   ├── ModelUnusable      not a GGUF, truncated, an embedding model, an unsupported architecture
│   └── LibraryUnusable    llama.cpp is missing, or is an unsupported release
├── EngineError            the model failed while running
│   └── ServerFailed       the server that runs the model cannot be reached or sends an invalid response
│       └── AnotherModel   the server runs another model now
├── StoreError
│   ├── StoreBusy          another process has locked the memory for too long
│   ├── StoreUnreachable   the database does not answer
│   ├── StoreCorrupt       the file is damaged, or is not a memory
│   ├── StoreFull          no space left, read-only, or no more ids
│   └── StoreTooNew        written by a newer version
└── ImportRefused          the format of a file to import is unknown
"""


class HaloWeaveError(Exception):
    """An error whose message can be shown to the user."""


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
