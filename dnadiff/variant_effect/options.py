"""The options of `python -m dnadiff.variants` that need no model."""

from __future__ import annotations

from dnadiff.config import Config

_OF_PRETRAINED = (  # key, verb of the message, default
    ("L2", "reads", False),
    ("dependency", "reads", None),
    ("report", "reads", None),
    ("stranded", "applies to", False),
    ("sites_per_window", "applies to", 1),
)


def check(config: Config) -> None:
    """Check their combination; raises ValueError naming the key."""
    if (config["vcf"] is None) == (config["saturate"] is None):
        raise ValueError(
            "give either vcf= (VCF, BCF or a table of variants) or saturate= (regions whose "
            "variants are all scored)"
        )
    if config["saturate"] is None:
        for key in ("deletions", "feature", "report"):
            if config[key]:
                raise ValueError(
                    f"{key} belongs to saturate=regions.bed; leave it out, or give regions"
                )
    for key, suffix in (("report", ".html"), ("dependency", ".tsv")):
        if config[key] is not None and not config[key].lower().endswith(suffix):
            raise ValueError(
                f"{key} {config[key]} has another format; its name must end in {suffix}"
            )
    if config["num_orders"] < 2:
        raise ValueError(
            f"num_orders {config['num_orders']} must be an integer of at least 2: the spread "
            "between orders gives the error"
        )


def check_fine_tuned(config: Config) -> None:
    """Refuse what does not apply to a fine-tuned run; raises ValueError naming the key."""
    for key, verb, default in _OF_PRETRAINED:
        if config[key] != default:
            raise ValueError(
                f"{key} {verb} a pretrained model, and {config['checkpoint']} is a fine-tuned run; "
                f"leave {key} out"
            )


def mismatch_is_error(config: Config) -> bool:
    """Whether a REF that differs from the genome ends the command."""
    from dnadiff.variant_effect.summary import ON_MISMATCH

    return config["on_mismatch"] == ON_MISMATCH[0]
