"""Plugins of the whole suite: pytest wants them named at the top."""

from __future__ import annotations

pytest_plugins = ["pytester"]
