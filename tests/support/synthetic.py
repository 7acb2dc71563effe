"""The synthetic stream, under the name that tests use."""

from tests.support.synthetic_source import NoProbe, NoWorkload, SyntheticSource
from tests.support.synthetic_world import Synthetic

__all__ = ["NoProbe", "NoWorkload", "Synthetic", "SyntheticSource"]
