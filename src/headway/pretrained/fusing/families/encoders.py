"""BERT and its like: no bias on the scores; padding is a mask of keys, never a matrix."""

from __future__ import annotations

from headway.pretrained.fusing.family import Family

NO_BIAS = "no bias; padding as a mask of keys"


def _family(model: str, folder: str, *classes: str) -> Family:
    return Family(
        models=(model,), file=f"{folder}.modeling_{folder.split('.')[-1]}", interface=dict.fromkeys(classes, NO_BIAS)
    )


FAMILIES = (
    _family("bert", "bert", "BertSelfAttention", "BertCrossAttention"),
    _family("roberta", "roberta", "RobertaSelfAttention", "RobertaCrossAttention"),
    _family("xlm-roberta", "xlm_roberta", "XLMRobertaSelfAttention", "XLMRobertaCrossAttention"),
    _family("camembert", "camembert", "CamembertSelfAttention", "CamembertCrossAttention"),
    _family("electra", "electra", "ElectraSelfAttention", "ElectraCrossAttention"),
    _family("albert", "albert", "AlbertAttention"),
    _family("distilbert", "distilbert", "DistilBertSelfAttention"),
)
