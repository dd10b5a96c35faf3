"""What a device does: measured rows, and the profiles fitted from them.

Reading order: measurement (rows), geometry and roofline (what is known before measuring), observations (rows as the
work that a step-time formula predicts), fit (coefficients with errors), assemble (a profile), cli.
"""
