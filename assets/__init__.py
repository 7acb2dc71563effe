"""Fonts and prompt sets, as package data."""
