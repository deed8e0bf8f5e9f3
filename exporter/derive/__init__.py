"""Engine sample + facts + model -> every figure we export, or the reason why not.

Pure: no I/O, no clock.  Formulas live in :mod:`exporter.kvmath`; here they are
given their inputs, engine figures first, arithmetic second.
"""
