"""What asks even where everything is allowed, unless a rule names it: the network, other users, packages, the machine
itself, and the files of a repository that make git run programs.
"""

__all__ = ["WARNINGS"]

_PROGRAMS = (
    # the network
    "alias aria2c axel chrome curl curlie firefox http-prompt httpie links lynx nc safari scp ssh telnet w3m wget xh "
    # other users
    "doas su sudo "
    # packages of the system
    "apk apt apt-cache apt-get dnf dpkg emerge home-manager makepkg opkg pacman paru pkg pkg_add pkg_delete portage "
    "rpm yay yum zypper "
    # the machine
    "at batch chkconfig crontab fdisk mkfs mkfs.* mount parted service systemctl umount "
    "firewall-cmd ifconfig ip iptables netstat pfctl route ufw"
)
_WAYS = (
    "brew install *",
    "cargo install *",
    "gem install *",
    "go install *",
    "npm install * -g *",
    "npm install * --global *",
    "npm -g *",
    "npm --global *",
    "pip install * --user *",
    "pip3 install * --user *",
    "pnpm add * -g *",
    "pnpm add * --global *",
    "yarn global add *",
    "go test * -exec *",
    "go test * -exec=* *",
)
_FILES = ("*:write(.git/**)", "*:write(**/.git/**)", "*:download(.git/**)", "*:download(**/.git/**)")

WARNINGS: tuple[str, ...] = (
    *(f"bash({program} *)" for program in _PROGRAMS.split()),
    *(f"bash({way})" for way in _WAYS),
    *_FILES,
)
