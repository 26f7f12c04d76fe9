"""The views of a call or a benchmark: waterfall, percentiles, report page.

Start reading at ``waterfall.py``.
"""
