import pathlib


def has_vnni():
    """Tells whether the processor has instructions for sums of products of int8.

    Without them, CTranslate2 adds pairs of products in 16 bits, which saturate: its
    int8 models compute other scores, and `export` refuses them.
    """
    file = pathlib.Path("/proc/cpuinfo")
    return not file.exists() or "vnni" in file.read_text()
