"""What a device does: measured rows, and the profiles fitted from them.

Reading order: measurement (rows), probes (the questions), engines (who answers them) and play (how), protocol (how
often, and what the answers are worth), measure (a session), environment; then geometry, devices and roofline (what is
known before measuring), observations (rows as the work that a step-time formula predicts), hold_out (what no fit sees),
estimate and fit (coefficients with errors, the best of several formulas), assemble (a profile), check (its errors on
what was held out), tables, figures and report, cli.
"""
