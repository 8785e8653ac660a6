"""Triton kernels of the layers. Importing this package imports no Triton: each kernel's module does.

On a GPU the layers call them; on a CPU they run only in Triton's interpreter (TRITON_INTERPRET=1, set before
Triton is imported), which the tests use.
"""
