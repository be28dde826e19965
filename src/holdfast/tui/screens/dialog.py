"""Base class of dialogs, which limits their height."""

from typing import ClassVar, TypeVar

from textual.screen import ModalScreen

__all__ = ["Dialog"]

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A dialog. `GROWS` selects the part that scrolls; it gets the lines that the other `REST` lines leave.

    In lines instead of a share of the screen, because a box with automatic height ignores shares.
    """

    GROWS: ClassVar[str] = ""
    REST: ClassVar[int] = 8

    def on_mount(self) -> None:
        """Fit the dialog to the screen."""
        self._fit()

    def on_resize(self) -> None:
        """Fit the dialog to the new size."""
        self._fit()

    def _fit(self) -> None:
        room = max(3, self.app.size.height * 9 // 10 - self.REST)
        for part in self.query(self.GROWS) if self.GROWS else ():
            part.styles.max_height = room
