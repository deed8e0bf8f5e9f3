"""Rules for sliding windows: which layers keep only the last tokens, and how many.

Each rule returns one number per layer: the window in tokens, 0 for a layer
that keeps every token.
"""

from __future__ import annotations

from collections.abc import Callable

from exporter.kvmath.fields import Fields, bad, unsupported

WindowRule = Callable[[Fields, int], list[int]]


def none(fields: Fields, layers: int) -> list[int]:
    """No windows.  A config of such a family that asks for one is not covered."""
    if any(fields.layer_types(layers) or ()) or fields.window(0):
        raise unsupported("sliding_window: not known for this model_type")
    return [0] * layers


def where_said(fields: Fields, layers: int) -> list[int]:
    """``sliding_window`` set: every layer windowed, or those ``layer_types`` names."""
    return _where_said(fields, layers, 0)


def where_said_or(class_default: int) -> WindowRule:
    """As :func:`where_said`, in a family whose class has a window where the config has no such field."""
    return lambda fields, layers: _where_said(fields, layers, class_default)


def _where_said(fields: Fields, layers: int, class_default: int) -> list[int]:
    window = fields.window(class_default)
    if window and fields.raw("use_sliding_window") is False:
        raise unsupported("use_sliding_window: false beside a sliding_window")
    sliding = fields.layer_types(layers)
    return _apply([True] * layers if sliding is None else sliding, window)


def switched_off(fields: Fields, layers: int) -> list[int]:
    """Families that carry window fields without using them: covered while ``use_sliding_window`` is false."""
    if fields.flag("use_sliding_window", False) or any(fields.layer_types(layers) or ()):
        raise unsupported("use_sliding_window: not known for this model_type")
    return [0] * layers


def qwen_tail(fields: Fields, layers: int) -> list[int]:
    """Qwen 2 and 3: under ``use_sliding_window`` the layers from ``max_window_layers`` on are windowed."""
    sliding = fields.layer_types(layers)
    if not fields.flag("use_sliding_window", False):
        if any(sliding or ()):
            raise bad("layer_types: sliding layers while use_sliding_window is off")
        return [0] * layers
    if sliding is None:
        # 0 is a real value here (every layer windowed), so count() does not fit.
        value = fields.raw("max_window_layers")
        first = 28 if value is None else value
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise bad("max_window_layers: expected a whole number of at least 0")
        sliding = [layer >= first for layer in range(layers)]
    return _apply(sliding, fields.window(4096))


def every_nth_full(
    pattern: int, *, default_window: int, more_tokens: int = 0, fixed: bool = False
) -> WindowRule:
    """Every ``pattern``-th layer full, the others windowed, unless ``layer_types`` says otherwise.

    ``sliding_window_pattern`` replaces ``pattern``: a number, or a word such as
    "LLLG" (EXAONE 4).  ``more_tokens`` are kept beyond ``sliding_window``.
    ``fixed``: the engine ignores ``layer_types``, so a different one is not covered.
    """

    def rule(fields: Fields, layers: int) -> list[int]:
        window = fields.window(default_window)
        sliding = fields.layer_types(layers)
        if sliding is None or fixed:
            period = pattern if fixed else _period(fields, layers, pattern)
            regular = [bool((layer + 1) % period) for layer in range(layers)]
            if sliding not in (None, regular):
                raise unsupported("layer_types: not the fixed pattern of this model_type")
            sliding = regular
        return _apply(sliding, window and window + more_tokens)

    return rule


def cwm(fields: Fields, layers: int) -> list[int]:
    """CWM: the first of every four layers full (class default), else as ``layer_types`` says."""
    sliding = fields.layer_types(layers)
    return _apply(
        [bool(layer % 4) for layer in range(layers)] if sliding is None else sliding, fields.window(8192)
    )


def _period(fields: Fields, layers: int, otherwise: int) -> int:
    value = fields.raw("sliding_window_pattern")
    if not isinstance(value, str):
        return fields.count_or(("sliding_window_pattern", "_sliding_window_pattern"), otherwise)
    if not value or value != "L" * (len(value) - 1) + "G" or len(value) > layers:
        raise unsupported("sliding_window_pattern: expected L...LG")
    if layers % len(value):
        # Releases of transformers disagree on whether the last layer is full then.
        raise unsupported("sliding_window_pattern: does not divide the number of layers")
    return len(value)


def _apply(sliding: list[bool], window: int) -> list[int]:
    return [window if here else 0 for here in sliding]
