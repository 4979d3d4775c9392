"""The engine on NVIDIA GPUs: the only place that imports triton, flashinfer or torch.cuda."""
