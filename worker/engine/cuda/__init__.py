"""Runs steps on an NVIDIA GPU: the only room that imports flashinfer, triton and torch.cuda."""
