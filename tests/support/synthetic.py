"""The synthetic stream, under the name that tests use."""

from app.bench.synthetic import Synthetic
from app.bench.synthetic_source import NoProbe, NoWorkload, SyntheticSource

__all__ = ["NoProbe", "NoWorkload", "Synthetic", "SyntheticSource"]
