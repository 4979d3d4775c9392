"""Runs steps on an NVIDIA GPU: the only package that imports flashinfer, triton and torch.cuda."""
