"""The BLEU metric of sacreBLEU, and what its tokenizers require."""

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.utils import SACREBLEU_DIR


def bleu_metric(lowercase: bool, tokenize: str) -> BLEU:
    """Returns the BLEU metric of sacreBLEU."""
    if tokenize not in list(BLEU.TOKENIZERS):
        raise ValueError(
            f"`tokenize` must be one of sacreBLEU's {sorted(BLEU.TOKENIZERS)}; "
            f"received `tokenize={tokenize!r}`. The default is '13a'."
        )
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # RuntimeError: MeCab is missing.
        raise ModuleNotFoundError(
            f"`tokenize={tokenize!r}` requires a package that is not installed. "
            f"sacreBLEU reports: {' '.join(str(error).split())}"
        ) from error
    except OSError as error:
        raise OSError(
            f"`tokenize={tokenize!r}` requires a file that sacreBLEU downloads to "
            f"`{SACREBLEU_DIR}` on first use; the download failed: {error}. Use it "
            "on a machine with a connection, and copy the folder."
        ) from error
