"""The style sheet, from a theme's tokens. Spacing on a 4-pixel grid, scaled with the text."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ui.theme import Theme

_SHEET = Template("""
QWidget { color: $text; }
QMainWindow { background: $bg; }
QMainWindow#deck { background: transparent; }
QMainWindow::separator { background: transparent; width: ${p8}px; height: ${p8}px; }
QMainWindow::separator:hover { background: $hover; }

QFrame#panel, QDockWidget > QWidget#dock_body { background: $panel; border: 1px solid $border;
    border-radius: ${p8}px; }
QWidget#dock_title { background: transparent; }
QDockWidget { background: $panel; }

QLabel { background: transparent; }
QLabel[role="title"] { font-size: ${title}px; font-weight: 600; }
QLabel[role="strong"] { font-weight: 600; }
QLabel[role="small"], QLabel[role="hint"] { font-size: ${small}px; color: $text_dim; }
QLabel[role="faint"] { font-size: ${small}px; color: $text_faint; }
QLabel[role="section"] { font-size: ${small}px; font-weight: 600; color: $text_faint; }
QLabel[role="warning"] { font-size: ${small}px; color: $warning; }
QLabel[role="danger"] { font-size: ${small}px; color: $danger; }

QPushButton, QToolButton { background: $raised; border: 1px solid $border; border-radius: ${p4}px;
    padding: ${p4}px ${p12}px; color: $text; }
QToolButton { padding: ${p4}px; }
QPushButton:hover, QToolButton:hover { background: $hover; border-color: $text_faint; }
QPushButton:pressed, QToolButton:pressed { background: $border; }
QPushButton:focus, QToolButton:focus { border-color: $accent; }
QPushButton:disabled, QToolButton:disabled { color: $text_faint; background: $panel; }
QPushButton:checked, QToolButton:checked { background: $hover; border-color: $accent; color: $text; }
QPushButton[kind="primary"] { background: $accent; color: $panel; border-color: $accent; font-weight: 600; }
QPushButton[kind="quiet"], QToolButton[kind="quiet"] { background: transparent; border-color: transparent;
    color: $text_dim; }
QPushButton[kind="quiet"]:hover, QToolButton[kind="quiet"]:hover { background: $hover; color: $text; }
QFrame#segments { background: $bg; border-radius: ${p6}px; }
QPushButton[kind="tight"] { padding: ${p4}px ${p6}px; }
QPushButton[kind="segment"] { background: transparent; border: none; border-radius: ${p4}px; color: $text_dim;
    padding: ${p4}px ${p6}px; font-size: ${small}px; }
QPushButton[kind="segment"][many="true"] { padding: ${p4}px; }
QPushButton[kind="segment"]:hover { color: $text; }
QPushButton[kind="segment"]:checked { background: $hover; color: $text; font-weight: 600; }
QPushButton[kind="segment"]:focus { background: $border; }
QPushButton[kind="toggle"] { background: transparent; color: $text_dim;
    padding: 0px ${p6}px; font-size: ${small}px; }
QPushButton[kind="toggle"]:hover { color: $text; background: $hover; }
QPushButton[kind="toggle"]:checked { background: $hover; color: $text; font-weight: 600; }
QPushButton[kind="toggle"]:focus { border-color: $accent; }
QToolButton::menu-indicator { image: none; width: 0; }

QLineEdit, QPlainTextEdit, QTextEdit, QTextBrowser, QSpinBox, QDoubleSpinBox, QComboBox { background: $bg;
    border: 1px solid $border; border-radius: ${p4}px; padding: ${p4}px ${p8}px; color: $text;
    selection-background-color: $accent; selection-color: $panel; }
QSpinBox, QDoubleSpinBox { padding: ${p4}px; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus {
    border-color: $accent; }
QLineEdit[kind="value"] { background: transparent; border-color: transparent; padding: 0px 0px 0px ${p4}px;
    font-weight: 600; }
QLineEdit[kind="value"]:hover { border-color: $border; background: $bg; }
QLineEdit[kind="value"]:focus { border-color: $accent; background: $bg; }
QLineEdit[kind="value"][pending="true"] { color: $accent; }
QComboBox[pending="true"] { color: $accent; }
QComboBox { padding-right: ${p2}px; }
QComboBox::drop-down { border: none; width: ${p14}px; }
QComboBox::down-arrow { image: none; }
QComboBox:disabled { color: $text_faint; background: $panel; }
QComboBox QAbstractItemView { background: $raised; border: 1px solid $border; selection-background-color: $hover;
    selection-color: $text; }
QCheckBox { spacing: ${p8}px; background: transparent; }
QCheckBox::indicator { width: ${p12}px; height: ${p12}px; border: 1px solid $text_faint; border-radius: 3px;
    background: $bg; }
QCheckBox::indicator:checked { background: $accent; border-color: $accent; }

QSlider { background: transparent; min-height: ${p16}px; }
QSlider::groove:horizontal { height: ${p4}px; background: $border; border-radius: ${p2}px; }
QSlider::sub-page:horizontal { background: $accent; border-radius: ${p2}px; }
QSlider::handle:horizontal { width: ${knob}px; height: ${knob}px; margin: -${p5}px 0; border-radius: ${p7}px;
    background: $text; }
QSlider::handle:horizontal:hover { background: $selection; }
QSlider::handle:horizontal:focus { background: $selection; border: ${p2}px solid $accent; }
QSlider::sub-page:horizontal:disabled { background: $text_faint; }
QSlider::handle:horizontal:disabled { background: $text_faint; }

QScrollArea, QScrollArea > QWidget > QWidget#page { background: transparent; border: none; }
QAbstractScrollArea { background: $panel; border: none; }
QScrollBar:vertical { background: transparent; width: ${p8}px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: ${p8}px; margin: 0; }
QScrollBar::handle { background: $border; border-radius: ${p4}px; min-height: ${p24}px; min-width: ${p24}px; }
QScrollBar::handle:hover { background: $text_faint; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }

QHeaderView::section { background: $panel; color: $text_dim; border: none; border-bottom: 1px solid $border;
    padding: ${p4}px ${p8}px; font-size: ${small}px; }
QTableView, QTreeView, QListView { background: $panel; border: none; gridline-color: $border;
    alternate-background-color: $raised; selection-background-color: $hover; selection-color: $text; }
QTabBar { background: transparent; qproperty-drawBase: 0; qproperty-elideMode: ElideNone;
    qproperty-usesScrollButtons: 1; }
QTabBar::scroller { width: ${p48}px; }
QTabBar QToolButton { background: $raised; padding: 0; border-radius: 0; }
QTabBar::tab { background: transparent; color: $text_dim; padding: ${p4}px ${p12}px; border: none;
    border-bottom: 2px solid transparent; }
QTabBar[narrow="true"]::tab { padding: ${p4}px ${p6}px; }
QTabBar::tab:selected { color: $text; border-bottom-color: $accent; }
QTabBar::tab:hover { color: $text; }
QTabWidget::pane { border: none; }

QMenuBar { background: $bg; color: $text_dim; padding: ${p2}px ${p8}px; font-size: ${small}px; }
QMenuBar::item { background: transparent; padding: ${p4}px ${p8}px; border-radius: ${p4}px; }
QMenuBar::item:selected { background: $hover; color: $text; }
QMenu { background: $raised; border: 1px solid $border; padding: ${p4}px; }
QMenu::item { padding: ${p4}px ${p24}px; border-radius: ${p4}px; }
QMenu::item:selected { background: $hover; }
QMenu::item:disabled { color: $text_faint; }
QMenu::separator { height: 1px; background: $border; margin: ${p4}px ${p8}px; }
QToolTip { background: $raised; color: $text; border: 1px solid $text_faint; padding: ${p8}px;
    font-size: ${small}px; }
QProgressBar { background: $border; border: none; border-radius: ${p2}px; max-height: ${p4}px; }
QProgressBar::chunk { background: $accent; border-radius: ${p2}px; }
QSplitter::handle { background: transparent; }
""")


def sheet(theme: Theme) -> str:
    from ui import fonts

    tokens = ("bg", "panel", "raised", "hover", "border", "text", "text_dim", "text_faint", "accent", "selection",
              "warning", "danger")  # fmt: skip
    words = {token: theme.color(token).name() for token in tokens}
    sizes = {f"p{n}": str(theme.px(n)) for n in (2, 4, 5, 6, 7, 8, 12, 14, 16, 24, 48)}
    # the handle of a slider is as high as groove and margins make it, and round with a radius of at most half of that
    margin = (theme.px(14) - theme.px(4)) // 2
    knob = theme.px(4) + 2 * margin
    sizes |= {"p5": str(margin), "knob": str(knob), "p7": str(knob // 2)}
    texts = {role: str(fonts.pixels(role, theme.scale)) for role in ("small", "body", "title")}
    return _SHEET.substitute(words | sizes | texts)
