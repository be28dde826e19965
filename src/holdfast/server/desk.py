"""A desk: an open workspace, with what the client that opened it first chose for it."""

from pathlib import Path

from holdfast.config.store import ConfigStore
from holdfast.core import Workspace
from holdfast.domain.events import Change, ConfigChanged, ConfigChangedEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.outfit import Outfit
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.server.join import Joiner
from holdfast.server.presence import ClientId

__all__ = ["Desk"]


class Desk:
    """An open workspace. The first client's flags count; later ones join."""

    def __init__(self, workspace: Workspace, body: WorkspaceBody, data_dir: Path) -> None:
        self.workspace = workspace
        self.id: WorkspaceId = workspace.record.id
        self.path = workspace.record.path
        self.joiner = Joiner()
        self.yolo = body.yolo
        self.debug = body.debug
        self.env = body.env
        self.channels = body.channels
        self.data_dir = data_dir / "workspaces" / self.id
        outfit = workspace.furniture
        assert isinstance(outfit, Outfit), "the server furnishes its workspaces"
        self.outfit = outfit
        workspace.asks.save_rule = self._save_rule
        workspace.asks.timeout = outfit.settings.options.ask_timeout
        outfit.on_settings = self._settings_changed
        outfit.publish = workspace.engine.outside.outlet.publish_live
        outfit.extensions.start()
        outfit.scan.current()
        self.lenders: set[ClientId] = set()
        self._changes = 0
        self.was_busy = False
        self.jobs_are_late = False
        """Whether jobs have kept it open for as long as they may while nobody was there."""

    @property
    def is_busy(self) -> bool:
        return self.workspace.engine.is_busy() or (self.outfit.jobs.is_busy and not self.jobs_are_late)

    @property
    def config(self) -> ConfigStore:
        return self.outfit.store

    def tell_of_change(self) -> None:
        """A setting was changed: screens read the workspace again. Told once, also if a look at the files tells it."""
        told = self._changes
        self.outfit.configuration.reading()
        if self._changes == told:
            self._publish_change()

    def _settings_changed(self) -> None:
        self.workspace.asks.timeout = self.outfit.configuration.settings.options.ask_timeout
        self._publish_change()

    def _publish_change(self) -> None:
        self._changes += 1
        changed = ConfigChangedEvent(Change("updated", ConfigChanged(self.id)))
        self.workspace.engine.outside.outlet.publish_live(changed)

    def _save_rule(self, rule: str) -> None:
        self.outfit.save_rule(rule)
        self.tell_of_change()

    @property
    def yolo(self) -> bool:
        """Whether what would be asked is allowed."""
        return self.workspace.asks.skips

    @yolo.setter
    def yolo(self, skips: bool) -> None:
        self.workspace.asks.skips = skips
