"""Search spaces of settings and the samplers that choose points in them: one search per file."""

from symlab.search.sampler import Sampler
from symlab.search.space import Dimension, Space
from symlab.search.tunable import Tunable

__all__ = ["Dimension", "Sampler", "Space", "Tunable"]
