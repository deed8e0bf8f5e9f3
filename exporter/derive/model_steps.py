"""The first lines of an explanation: what each layer of the model keeps per token."""

from __future__ import annotations

from exporter.derive.inputs import Inputs
from exporter.derive.readout import Notebook
from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.layers import LayerCache


def show_model(inputs: Inputs, dtype: str | Unavailable, out: Notebook) -> None:
    """One step for all layers that are alike, before any engine lays them out."""
    if (override := inputs.model.override) is not None:
        out.show("model", f"set by hand: {', '.join(override.names)}", "config.json is not used")
        return
    shape = inputs.model.shape
    if not known(shape) or not known(dtype):
        return
    alike: dict[LayerCache, int] = {}
    for layer in shape.layers:
        alike[layer] = alike.get(layer, 0) + 1
    for layer, count in alike.items():
        if layer.state is not None:
            state = layer.state
            conv = f"{state.conv_rows} x ({state.conv_width:,} + {state.groups} x {state.group_width:,})"
            temporal = (
                f"{state.heads} heads x {state.head_elements:,}, {state.temporal_dtype or 'model dtype'}"
            )
            out.show(
                f"model: {count} {state.name} layers, the same state at any length",
                f"convolution {conv} + temporal {temporal}",
                f"{state.conv_elements(1)} + {state.temporal_elements(1)}",
                "elements a layer",
            )
            continue
        sides = f"({layer.k_dim} K + {layer.v_dim} V)" if layer.v_dim else f"{layer.k_dim}"
        heads = f"{layer.kv_heads} KV heads x " if layer.v_dim else "one vector of "
        window = f", of the last {layer.window_tokens:,} tokens" if layer.window_tokens else ""
        elements = layer.elements_per_token(layer.kv_heads)
        out.show(
            f"model: {count} {layer.kind} layers, {dtype}",
            f"{heads}{sides} a token and layer{window}",
            f"{elements:,}",
            "elements",
        )
