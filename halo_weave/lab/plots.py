"""Plot replays as PNG and SVG. Needs matplotlib: pip install 'halo-weave[lab]'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.chat.capture import StoredCapture
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput
from halo_weave.lab.replay import ReplayResult, replay

KINDS = ("png", "svg")
MAX_LINES = 40  # chunks whose brightness is drawn as single lines


def write_plots(capture: StoredCapture, results: Mapping[str, ReplayResult], folder: Path) -> list[Path]:
    """Plot brightness over time, pruning, survival by age, and attribution; each as PNG and as SVG."""
    plt = _matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in (
        ("brightness", _brightness(plt, results)),
        ("asleep", _age_when_pruned(plt, results)),
        ("survival", _survival(plt, results)),
        ("looks", _attribution(plt, capture)),
    ):
        for axis in figure.axes:
            if axis.get_xlabel():  # axes of counts
                axis.xaxis.get_major_locator().set_params(integer=True)
        for kind in KINDS:
            place = folder / f"{name}.{kind}"
            figure.savefig(place, dpi=120)
            written.append(place)
        plt.close(figure)
    return written


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise BadInput("Plots need matplotlib. Install it: pip install 'halo-weave[lab]'") from None
    matplotlib.use("agg")  # no window is opened
    import matplotlib.pyplot

    return matplotlib.pyplot


def _brightness(plt: Any, results: Mapping[str, ReplayResult]) -> Any:
    figure, axes = plt.subplots(
        1, len(results), figsize=(5 * len(results), 4), squeeze=False, layout="constrained"
    )
    for axis, (name, result) in zip(axes[0], results.items(), strict=True):
        keys = sorted({key for turn in result.brightness for key in turn}, key=_place)
        for i, key in enumerate(keys[:: max(1, len(keys) // MAX_LINES)]):
            line = [turn.get(key, np.nan) for turn in result.brightness]
            axis.plot(line, linewidth=0.8, color=plt.cm.viridis(i / max(1, min(len(keys), MAX_LINES))))
        axis.set(title=name, xlabel="turn", ylabel="brightness of a chunk")
    return figure


def _age_when_pruned(plt: Any, results: Mapping[str, ReplayResult]) -> Any:
    figure, axes = plt.subplots(
        1, len(results), figsize=(5 * len(results), 4), squeeze=False, sharey=True, layout="constrained"
    )
    keys = sorted(
        {key for result in results.values() for turn in result.brightness for key in turn}, key=_place
    )
    rows = {key: i for i, key in enumerate(keys)}
    for axis, (name, result) in zip(axes[0], results.items(), strict=True):
        live = np.zeros((len(keys), len(result.brightness)))
        for i, turn in enumerate(result.brightness):
            live[[rows[key] for key in turn], i] = 1
        axis.imshow(live, aspect="auto", cmap="YlOrBr", interpolation="nearest", vmin=0, vmax=1.4)
        axis.set(title=f"{name}: live (dark) after each turn", xlabel="turn", ylabel="chunk, oldest first")
    return figure


def _survival(plt: Any, results: Mapping[str, ReplayResult]) -> Any:
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, result in results.items():
        ages = np.array([pruned.age for pruned in result.pruned])
        if len(ages):
            at = np.arange(0, ages.max() + 2)
            axis.step(at, [(ages >= age).mean() for age in at], where="post", label=name)
    axis.set(xlabel="age in turns", ylabel="share of chunks that were pruned later", ylim=(0, 1.05))
    if results:
        axis.legend()
    return figure


def _attribution(plt: Any, capture: StoredCapture) -> Any:
    """A matrix of attribution: replies by live chunks."""
    attribution = replay(capture, uses=True).uses
    keys = sorted({key for reply in attribution for key in reply}, key=_place)
    columns = {key: i for i, key in enumerate(keys)}
    shares = np.full((len(attribution), max(1, len(keys))), np.nan)
    for i, reply in enumerate(attribution):
        for key, share in reply.items():
            shares[i, columns[key]] = share
    figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
    drawn = axis.imshow(shares, aspect="auto", cmap="magma_r", interpolation="nearest", vmin=0)
    figure.colorbar(drawn, ax=axis, label="share of the reply")
    axis.set(xlabel="chunk, oldest first", ylabel="reply")
    return figure


def _place(key: ChunkKey) -> tuple[int, int]:
    return key.turn_id, key.chunk_id
