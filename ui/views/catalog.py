"""The views that the window shows, in the order of the View menu."""

from __future__ import annotations

from ui.views.base import View
from ui.views.batch import BatchView
from ui.views.beams import BeamsView
from ui.views.calculator import CalculatorView
from ui.views.latency import LatencyView
from ui.views.lives import LivesView
from ui.views.memory import MemoryView
from ui.views.pool import PoolView
from ui.views.prefix import PrefixView
from ui.views.requests import RequestsView
from ui.views.roofline import RooflineView
from ui.views.speculation import SpeculationView
from ui.views.story import StoryView
from ui.views.tables import TablesView
from ui.views.verification import VerificationView

VIEWS: tuple[type[View], ...] = (
    PoolView,
    TablesView,
    PrefixView,
    BatchView,
    SpeculationView,
    MemoryView,
    LivesView,
    LatencyView,
    RequestsView,
    VerificationView,
    BeamsView,
    RooflineView,
    CalculatorView,
    StoryView,
)
