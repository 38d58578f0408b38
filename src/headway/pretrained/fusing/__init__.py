"""Pretrained models of transformers on headway's attention: the same outputs, faster."""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("headway.pretrained.fusing needs transformers: pip install 'headway[models]'") from error

from headway.pretrained.fusing.registry import FAMILIES, REFUSED
from headway.pretrained.fusing.surgery import Fusing, fuse, fused, unfuse

__all__ = ["FAMILIES", "REFUSED", "Fusing", "fuse", "fused", "unfuse"]
