"""`warmcold bench`: how fast the engine is, as ratios measured side by side in one run.

`arms.py` and `raw.py`: what is timed; `measure.py` and `memory.py`: the questions; `figures.py`: the arithmetic.
"""
