"""Work on pretrained models: what their positions learned (`analysis`), and exchanging positions (`conversion`)."""
