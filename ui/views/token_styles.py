"""How streamed text shows where its tokens come from, and the key that says so: one place for both."""

from __future__ import annotations

from PySide6.QtGui import QTextCharFormat

from ui.paint.text_flow import style
from ui.theme import Theme
from ui.views.style_key import Kind

PROMPT, NOTE = 4, 5  # styles after the four of records.ORIGINS


def formats(theme: Theme) -> list[QTextCharFormat]:
    """By index: sampled, accepted, resampled, bonus (records.ORIGINS), then the prompt and notes. What the colours say
    the lines say as well: accepted ones stand on a line, what took a rejected draft's place on dots, and quieter, for
    where drafting fails it is most of the text; a bonus on a tint alone."""
    bonus, tint = theme.color("bonus"), theme.mix("bonus", 0.16)
    faint = style(theme.color("text_faint"))
    accepted = style(theme.color("accepted"), theme.mix("accepted", 0.13), "line")
    return [style(theme.color("text")), accepted, style(bonus, under="dots"), style(bonus, tint), faint, faint]


def kinds(theme: Theme) -> list[Kind]:
    """The same as a key, the most telling first."""
    bonus, tint = theme.color("bonus"), theme.mix("bonus", 0.16)
    return [
        Kind(("draft, accepted ✓", "accepted ✓"), theme.color("accepted"), theme.mix("accepted", 0.13), "line"),
        Kind(("in place of a rejected one", "resampled"), bonus, under="dots"),
        Kind(("bonus +",), bonus, tint),
        Kind(("sampled",), theme.color("text")),
        Kind(("prompt",), theme.color("text_faint")),
    ]
