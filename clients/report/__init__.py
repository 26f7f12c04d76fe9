"""What a call or a benchmark shows for itself: waterfall, percentiles, report page.

Start reading at ``waterfall.py``.
"""
