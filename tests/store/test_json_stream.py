"""One large JSON object, read a piece at a time."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st

from halo_weave.store import json_stream
from halo_weave.store.json_stream import JsonReader

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    found=st.dictionaries(st.text(), values, max_size=6),
    step=st.integers(1, 7),
    indent=st.sampled_from([None, 0, 3]),
)
def test_json_is_read_the_same_in_pieces_of_any_size(found, step, indent):
    jsonstream_step, json_stream.STEP = json_stream.STEP, step
    try:
        got: dict = {}
        for key, value in JsonReader(io.StringIO(json.dumps(found, indent=indent))):
            if isinstance(found[key], list):
                got.setdefault(key, []).append(value)
            else:
                got[key] = value
    finally:
        json_stream.STEP = jsonstream_step
    assert got == {key: value for key, value in found.items() if value != []}
