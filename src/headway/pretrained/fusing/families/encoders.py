"""BERT and its like: no bias on the scores; padding is a mask of keys, not a matrix.

Positions are embeddings, or rotations of q and k before attention. ModernBERT's windows are a matrix of True and False.
"""

from __future__ import annotations

from headway.pretrained.fusing.family import Family

NO_BIAS = "no bias; padding as a mask of keys"


def _family(model: str, file: str, *classes: str, what: str = NO_BIAS) -> Family:
    """Return a family of `file`, which is FOLDER, or FOLDER.FILE where the names differ."""
    folder, _, name = file.partition(".")
    return Family(models=(model,), file=f"{folder}.modeling_{name or folder}", interface=dict.fromkeys(classes, what))


FAMILIES = (
    _family("bert", "bert", "BertSelfAttention", "BertCrossAttention"),
    _family("roberta", "roberta", "RobertaSelfAttention", "RobertaCrossAttention"),
    _family("xlm-roberta", "xlm_roberta", "XLMRobertaSelfAttention", "XLMRobertaCrossAttention"),
    _family("camembert", "camembert", "CamembertSelfAttention", "CamembertCrossAttention"),
    _family("electra", "electra", "ElectraSelfAttention", "ElectraCrossAttention"),
    _family("albert", "albert", "AlbertAttention"),
    _family("distilbert", "distilbert", "DistilBertSelfAttention"),
    _family("xlm-roberta-xl", "xlm_roberta_xl", "XLMRobertaXLSelfAttention", "XLMRobertaXLCrossAttention"),
    _family("data2vec-text", "data2vec.data2vec_text", "Data2VecTextSelfAttention", "Data2VecTextCrossAttention"),
    _family("bert-generation", "bert_generation", "BertGenerationSelfAttention", "BertGenerationCrossAttention"),
    _family("ernie", "ernie", "ErnieSelfAttention", "ErnieCrossAttention"),
    _family("modernbert", "modernbert", "ModernBertAttention", what="no bias; padding and windows as masks"),
    _family("esm", "esm", "EsmSelfAttention"),
    _family("layoutlm", "layoutlm", "LayoutLMSelfAttention"),
    _family("clip_text_model", "clip", "CLIPAttention"),
)
