"""What is counted before a model is loaded is what it takes, and a name leads to a model that answers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from halo_weave.app import Options, open_engine
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Sampling
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.engines.llama.kv_cache import LIVE
from halo_weave.models.memory_estimate import KvType
from tests.contract.talks import Talk
from tests.real_model.weights import chat_model

pytestmark = pytest.mark.model
THREE = Sampling(temperature=0.0, max_new_tokens=3)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0", "f32"])
def test_a_token_takes_the_memory_that_was_counted(kv_type: KvType) -> None:
    with LlamaEngine(chat_model(), limits=EngineLimits(context=512, kv_type=kv_type, batch=32)) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "Marta moved to Lisbon in the spring and found a small flat near the river.")
        talk.hear(THREE)
        cache = engine.caches["w"]
        each = cache._save(LIVE).nbytes / cache.count
    assert each == pytest.approx(engine.config.cell_bytes, rel=0.02)
    assert engine.info.abilities.cuts
    assert engine.mapping_errors == 0


def test_a_name_of_the_catalogue_leads_to_the_model(tmp_path: Path) -> None:
    chat_model()
    options = Options(tmp_path, model="smollm2-135m", context=1024, threads=1, gpu_layers=0, batch=16)
    with closing(open_engine(options)) as engine:
        assert isinstance(engine, LlamaEngine)
        assert engine.info.name == "SmolLM2 135M Instruct"
        assert (engine.info.context, engine.config.batch, engine.limits.gpu_layers) == (1024, 16, 0)
