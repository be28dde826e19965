"""What all dialogs share: the room they take."""

from typing import ClassVar, TypeVar

from textual.screen import ModalScreen

__all__ = ["Dialog"]

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """`GROWS` names the part that scrolls. It gets the room that the other `REST` lines leave.

    In lines, not in a share of the screen: a box that is as high as what is in it does not ask for shares.
    """

    GROWS: ClassVar[str] = ""
    REST: ClassVar[int] = 8

    def on_mount(self) -> None:
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        room = max(3, self.app.size.height * 9 // 10 - self.REST)
        for part in self.query(self.GROWS) if self.GROWS else ():
            part.styles.max_height = room
