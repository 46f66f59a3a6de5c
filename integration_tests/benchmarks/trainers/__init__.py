"""One small training, written for each trainer that the benchmark compares."""

# Name of the module here, and of the distribution that it needs.
PEERS = {
    "lightning_fabric": "lightning-fabric",
    "lightning_trainer": "pytorch-lightning",
    "accelerate": "accelerate",
    "mmengine": "mmengine",
    "onedl_mmengine": "onedl-mmengine",
    "transformers": "transformers",
}
