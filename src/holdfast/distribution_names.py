"""Name of the distribution on the package index, for messages that say what to install.

The import package and the command are called `holdfast`; the distribution is not, because the name `holdfast` on the
package index belongs to an unrelated project, which installs an import package `holdfast` too.
"""

__all__ = ["DISTRIBUTION", "FOREIGN_DISTRIBUTION", "OVERWRITTEN", "REPAIR", "install_command"]

DISTRIBUTION = "holdfast-agent"
FOREIGN_DISTRIBUTION = "holdfast"

REPAIR = f"pip uninstall {FOREIGN_DISTRIBUTION}, then pip install --force-reinstall {DISTRIBUTION}"

OVERWRITTEN = (
    f"holdfast: another project's distribution, {FOREIGN_DISTRIBUTION!r}, has overwritten files of {DISTRIBUTION!r} "
    f"in this environment. Run: {REPAIR}"
)


def install_command(extra: str) -> str:
    """Return the command that installs an optional extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
