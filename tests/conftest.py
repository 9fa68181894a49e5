"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

from tests.stores.material import SHARED_MEMORY

# A slow machine is no defect: nothing here is judged by the clock.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Files of tests are in memory, where waiting for the disk takes no time. Tests of the disk say so (stores/disk).
if os.access(SHARED_MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))
