"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A slow machine is no defect: nothing here is judged by the clock.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
