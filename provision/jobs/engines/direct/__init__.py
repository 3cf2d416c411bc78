"""Jobs by SSH and docker alone: nothing has to be installed but us."""

from provision.jobs.engines.direct.engine import DirectEngine
from provision.jobs.engines.direct.known import Eyes, Known

__all__ = ["DirectEngine", "Eyes", "Known"]
