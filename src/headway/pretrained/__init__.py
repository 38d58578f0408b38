"""Work on pretrained models: what positions learned (`analysis`), exchanging them (`conversion`), speed (`fusing`).

Importing this tells transformers, where it is installed, of `from_pretrained(..., attn_implementation="headway")`.
"""

from importlib.util import find_spec

if find_spec("transformers") is not None:
    from headway.pretrained.fusing.interface import register

    register()
