"""The processes of the further GPUs of a tensor-parallel model."""
