"""How fast bitmma is, as one table: ``python -m benchmarks`` from a checkout, bitmma installed.

`rows` says what is measured and what is asked of it, `measure` how, `operands` on what, `machine`
where; `peer` runs the published simulator on the same work and `report` prints.
"""
