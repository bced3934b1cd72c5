"""Measuring tensors on a device: queues on the host, Triton kernels on the device."""
