"""An open workspace with the options of the client that opened it first."""

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
    """An open workspace. The flags of the first client apply; later clients share them."""

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
        """Set when jobs have kept the workspace open for as long as they may without a client."""

    @property
    def is_busy(self) -> bool:
        """True while runs, or jobs within their time limit, keep the workspace open."""
        return self.workspace.engine.is_busy() or (self.outfit.jobs.is_busy and not self.jobs_are_late)

    @property
    def config(self) -> ConfigStore:
        """The settings files of the workspace."""
        return self.outfit.store

    def tell_of_change(self) -> None:
        """Notify clients of a changed setting, once, even if re-reading the files also reports the change."""
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
        """True if permission requests are granted automatically."""
        return self.workspace.asks.skips

    @yolo.setter
    def yolo(self, skips: bool) -> None:
        self.workspace.asks.skips = skips
